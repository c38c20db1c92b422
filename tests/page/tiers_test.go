package page_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// The ranges that the page offers, the one that it shows, and its note about the address.
const (
	ranges = `[...document.querySelectorAll("#range input")].map((input) => input.value).join()`
	chosen = `document.querySelector("#range input:checked")?.value`
	said   = `document.getElementById("view-note").textContent`
)

// The page asks only about ranges that the tiers hold, whatever the tiers are: every total is there, and
// nothing is refused.
func TestPageFollowsTiers(t *testing.T) {
	for _, c := range []struct{ tiers, ranges, usual string }{
		{"1s/1m,1m/1d", "15m,1h,6h,24h,today,custom", "24h"},
		{"1s/1h,1m/1d,1h/92d", "15m,1h,24h,7d,30d,90d,today,yesterday,month,custom", "24h"},
		{"1s/30s", "30s", "30s"},
	} {
		t.Run(c.tiers, func(t *testing.T) {
			s := startWithTiers(t, c.tiers)
			s.hit("a")
			stack.EventuallyTotal(t, s.query.URL(), "a", "30s", 1)
			s.publishOldHits()
			b := open(t, s.query.URL()+"/?key=a", desktop)
			b.until("the total", hits("a"))
			b.until("freshness", `document.getElementById("fresh").dataset.state === "green" && document.getElementById("notice").hidden`)
			for _, is := range []struct{ what, expression, want string }{{"ranges", ranges, c.ranges}, {"range", chosen, c.usual}, {"sentence", said, ""}} {
				require.Equal(t, is.want, eval[string](b, is.expression), "%s", is.what)
			}
			for _, length := range strings.Split(c.ranges, ",") {
				b.click(`#range input[value="` + length + `"]`)
				b.until("the total of "+length, `document.getElementById("rows-table").getAttribute("aria-busy") === "false" && `+chosen+` === "`+length+`" && `+hits("a")+` !== "–"`)
				b.until("the drawing of "+length, `document.querySelector('#rows tr[data-key="a"] .sparkline')`)
			}
			b.clean(s.query.URL())
		})
	}
}

// The page shows what the address asks for and it does not have, until the reader chooses again. No counter
// of the address is lost.
func TestAddressAsksForMore(t *testing.T) {
	s := startWithTiers(t, "1s/1m,1m/1d")
	s.hit("k08")
	stack.EventuallyTotal(t, s.query.URL(), "k08", "1m", 1)
	var address strings.Builder
	for i := 1; i <= 30; i++ {
		fmt.Fprintf(&address, "&key=k%02d", i)
	}
	b := open(t, s.query.URL()+"/?range=7d"+address.String(), desktop)
	b.until("the first seven", on+` === "k01,k02,k03,k04,k05,k06,k07"`)
	const waiting = "Of the 30 lines of this address the chart shows 7, as many as can be distinguished. Take one out, and the next takes its place."
	const instead = " The address asks for 7 days, which the page does not offer here: it shows 15 minutes."
	require.Equal(t, waiting+instead, eval[string](b, said), "what the page says")
	b.click(`#rows tr[data-key="k03"]`)
	b.until("the eighth", on+` === "k01,k02,k04,k05,k06,k07,k08" && `+hits("k08")+` === "1"`)
	require.Equal(t, strings.Replace(waiting, "30", "29", 1), eval[string](b, said), "after a removal")
	if got, want := eval[string](b, "location.search"), "?"+strings.TrimPrefix(strings.NewReplacer("&key=k03", "").Replace(address.String()), "&"); got != want {
		t.Errorf("the address is %s, want %s", got, want)
	}
	b.clean(s.query.URL())
}

// Before a worker has run the page says what to do, as the API does, and goes on by itself. If the namespace
// gets other tiers later, the page asks about windows that these hold.
func TestTiersComeAndChange(t *testing.T) {
	chromium(t)
	t.Parallel()
	s := &system{t: t, redis: stack.Redis(t), nats: stack.NATSProcess(t)}
	s.query = startEmptyQuery(t, s.redis, "NATS_URL="+s.nats.URL())
	b := open(t, s.query.URL()+"/?key=a", desktop)
	b.until("what to do, and nothing else", `/^Nothing is counted yet\. No worker has counted in the namespace tallyroll yet: start ingest /.test(`+notice+`) && document.getElementById("main").innerText.trim() === ""`)
	s.ingest = stack.Ingest(t, s.nats, s.redis)
	s.js = s.nats.JetStream()
	s.hit("a")
	b.until("the total", hits("a")+` === "1" && `+notice+` === ""`)
	s.ingest.Stop()
	err := s.redis.Client().FlushAll(t.Context()).Err()
	require.NoError(t, err)
	stack.Ingest(t, s.nats, s.redis, "TIERS=1s/1m,1m/1d")
	b.until("the page to go on", hits("a")+` === "1" && `+notice+` === ""`)
	b.click(`#range input[value="30d"]`) // which is no more
	b.until("the ranges of the new tiers", ranges+` === "15m,1h,6h,24h,today,custom" && `+hits("a")+` === "1" && `+notice+` === "" && /asks for 30 days/.test(`+said+`)`)
	b.clean(s.query.URL(), failedRequests...)
}
