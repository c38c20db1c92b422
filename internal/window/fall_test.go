package window

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// After the wait, the total has fallen; a millisecond earlier it had not.
func TestFall(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		l := rapid.OneOf(genChart, genLayout).Draw(t, "layout")
		now := rapid.Int64Range(1e12, 2e12).Draw(t, "now")
		hits := genHits(l, now).Draw(t, "hits")
		longest := l.Tiers[len(l.Tiers)-1].Window
		length := time.Duration(rapid.Int64Range(1, int64(longest/time.Second)).Draw(t, "seconds")) * time.Second
		// The cells stay as they are, so that only time passes.
		cells := leftBy(l, "a", hits, now)
		total := func(p *Plan) int64 { return p.Sum(p.cellsOf(cells), 0).Total }
		plan := func(now int64) *Plan {
			p, err := l.Plan("a", Range{now - length.Milliseconds(), now}, now)
			require.NoError(t, err)
			return &p
		}

		p := plan(now).Alone(l)
		most := rapid.Int64Range(0, max(1, total(&p)+1)).Draw(t, "most")
		wait := p.Fall(most, total)
		// A plan at the later time shows that none of the hashes was missing.
		if later := total(plan(now + wait.Milliseconds())); later > most {
			t.Fatalf("%d after %v; want at most %d", later, wait, most)
		}
		if wait > 0 {
			if before := total(plan(now + wait.Milliseconds() - 1)); before <= most {
				t.Fatalf("%d a millisecond before %v, which is at most %d already", before, wait, most)
			}
		}
		if total(&p) <= most && wait != 0 {
			t.Fatalf("waits %v for %d to be at most %d", wait, total(&p), most)
		}
	})
}
