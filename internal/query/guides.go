package query

import (
	"fmt"
	"strings"

	"tallyroll/docs"
	"tallyroll/internal/web/api"
)

// The groups of operations, in the order in which one needs them.
const (
	groupCount, groupAsk, groupLimit, groupOperate = "Count", "Ask", "Limit", "Operate"
)

var groups = []api.Group{
	{
		Name: groupCount, Guides: []string{"collect", "rules", "delivery"},
		About: "A hit is a message under hits. in NATS JetStream: the rest of the subject names the counter. The program collect takes hits over HTTP, " +
			"and has an API page of its own; rules count messages that are no hits.",
	},
	{Name: groupAsk, Guides: []string{"queries", "promql"}, About: "How many there were, of one counter or of many: totals, steps, charts, lists, and all of them as rows."},
	{Name: groupLimit, Guides: []string{"limits"}, About: "Whether a key may have more, decided and counted in one step, and what was decided."},
	{Name: groupOperate, Guides: []string{"operations", "watch", "scaling", "reference"}, About: "Whether the streams are counted, what was refused, what rules say, and how the process is."},
}

// guides are the pages of docs/ that the groups name. Their titles are their first lines.
func guides() (out []api.Guide) {
	for _, g := range groups {
		for _, name := range g.Guides {
			text, err := docs.Guides.ReadFile(name + ".md")
			if err != nil {
				panic(fmt.Errorf("read an embedded guide: %w", err)) // the build has put it there
			}
			first, _, _ := strings.Cut(string(text), "\n")
			out = append(out, api.Guide{Name: name, Title: strings.TrimPrefix(first, "# "), Text: string(text)})
		}
	}
	return out
}
