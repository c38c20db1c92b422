package page_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"tallyroll/tests/stack"
)

// The windows, ranges and steps that the page offers.
const (
	columns = `[...document.querySelectorAll("#totals-head th")].map((th) => th.textContent).join()`
	ranges  = `[...document.querySelectorAll("#ranges input")].map((input) => input.value).join()`
	trends  = `[...document.querySelectorAll("#top-windows input")].map((input) => input.value).join()`
	steps   = `[...document.querySelectorAll("#step option")].map((option) => option.value).join()`
	said    = `document.getElementById("view-note").textContent`
)

// The page asks only about windows that the tiers hold, whatever the tiers are: every total is there, and nothing
// is refused.
func TestPageFollowsTiers(t *testing.T) {
	for _, c := range []struct {
		tiers                          string // of the namespace
		columns, ranges, trends        string
		at                             string // the range whose steps are looked at
		usual, steps                   string
		longest                        string
		fewestPoints, mostPointsShowed int
	}{
		{
			"1s/1m,1m/1d", "Counter,1 minute,15 minutes,1 hour,6 hours,24 hours", "1m,15m,1h,6h,24h", "1m,1h,6h,24h",
			"6h", "5m", "1m,5m,15m,30m,1h", "24h", 360, 361,
		},
		{
			"1s/1h,1m/1d,1h/92d", "Counter,1 minute,1 hour,24 hours,7 days,30 days,90 days", "1m,1h,24h,7d,30d,90d", "1m,1h,24h,7d",
			"1h", "30s", "1s,5s,10s,30s,1m,5m,15m", "90d", 3590, 3600,
		},
		{
			"1s/30s", "Counter,30 seconds", "30s", "30s",
			"30s", "1s", "1s,5s", "30s", 20, 31,
		},
	} {
		t.Run(c.tiers, func(t *testing.T) {
			s := startWithTiers(t, c.tiers)
			s.hit("a")
			stack.EventuallyTotal(t, soon, s.query.URL(), "a", "30s", 1)
			// Counting began long ago, as far as the readers can see.
			err := s.redis.Client().HSet(t.Context(), "tallyroll:streams", ".began", time.Now().Add(-400*24*time.Hour).UnixMilli()).Err()
			if err != nil {
				t.Fatal(err)
			}
			b := open(t, s.query.URL()+"/?range="+c.at, desktop)
			b.until("the longest window", fmt.Sprintf(`document.querySelector('tr[data-key="a"] td[data-window="%s"] .value')?.textContent !== "–"`, c.longest)+` && document.querySelector('tr[data-key="a"]')`)
			b.until("freshness", `document.getElementById("fresh").dataset.state === "green" && document.getElementById("notice").hidden`)
			for _, is := range []struct{ what, expression, want string }{
				{"columns", columns, c.columns}, {"ranges", ranges, c.ranges}, {"trends", trends, c.trends}, {"steps", steps, c.steps},
				{"usual step", `document.getElementById("step").value`, c.usual}, {"sentence", said, ""},
			} {
				if got := eval[string](b, is.expression); got != is.want {
					t.Errorf("%s: %s, want %s", is.what, got, is.want)
				}
			}
			finest, _, _ := strings.Cut(c.steps, ",")
			eval[bool](b, fmt.Sprintf(`(document.getElementById("step").value = %q, document.getElementById("step").dispatchEvent(new Event("change")))`, finest))
			b.until("the finest points", fmt.Sprintf(`document.getElementById("plot").dataset.step === %q && document.getElementById("plot").dataset.points >= %d && document.getElementById("plot").dataset.points <= %d`,
				finest, c.fewestPoints, c.mostPointsShowed))
			if crowded := eval[int](b, `document.querySelectorAll("#plot .band").length`); (crowded > 0) != (c.mostPointsShowed > 1000) {
				t.Errorf("%d bands for up to %d points", crowded, c.mostPointsShowed)
			}
			for _, length := range strings.Split(c.ranges, ",") {
				eval[bool](b, fmt.Sprintf(`(document.querySelector('#ranges input[value="%s"]').click(), true)`, length))
				b.until("a chart of "+length, `document.getElementById("plot").dataset.step === document.getElementById("step").value`)
			}
			for _, length := range strings.Split(c.trends, ",") {
				eval[bool](b, fmt.Sprintf(`(document.querySelector('#top-windows input[value="%s"]').click(), true)`, length))
				b.until("the trends of "+length, `!/Error|refuse/.test(document.getElementById("top-note").textContent)`)
			}
			b.clean(s.query.URL(), "/v1/total") // the window before the longest one is out of reach, which the page asks about
		})
	}
}

// What the address asks for and the page does not have is said, until the reader chooses anew. No counter of the
// address is lost.
func TestAddressAsksForMore(t *testing.T) {
	s := startWithTiers(t, "1s/1m,1m/1d")
	s.hit("k08")
	stack.EventuallyTotal(t, soon, s.query.URL(), "k08", "1m", 1)
	var address strings.Builder
	for i := 1; i <= 30; i++ {
		fmt.Fprintf(&address, "&key=k%02d", i)
	}
	b := open(t, s.query.URL()+"/?range=7d"+address.String(), desktop)
	keys := `[...document.querySelectorAll("#totals-rows tr")].map((row) => row.dataset.key).join()`
	b.until("the first seven", keys+` === "k01,k02,k03,k04,k05,k06,k07"`)
	const waiting = "Of the 30 counters of this address the page shows 7, as many as can be told apart. Remove one, and the next takes its place."
	const instead = " The address asks for a chart of 7 days, which the page does not offer here: it shows 1 hour."
	if got := eval[string](b, said); got != waiting+instead {
		t.Errorf("the page says %q", got)
	}
	b.until("the trends to say so, too", `/7 counters are as many as can be told apart/.test(document.getElementById("top-note").textContent)`)
	eval[bool](b, `(document.querySelector('tr[data-key="k03"] .remove').click(), true)`)
	b.until("the eighth", keys+` === "k01,k02,k04,k05,k06,k07,k08" && `+value("k08", "1h")+` === "1"`)
	if got := eval[string](b, said); got != strings.Replace(waiting, "30", "29", 1) {
		t.Errorf("after a removal the page says %q", got)
	}
	if got, want := eval[string](b, "location.search"), "?"+strings.TrimPrefix(strings.NewReplacer("&key=k03", "").Replace(address.String()), "&"); got != want {
		t.Errorf("the address is %s, want %s", got, want)
	}
	b.clean(s.query.URL())
}

// Before a worker has run the page says what to do, as the API does, and goes on by itself. If the namespace gets other
// tiers later, the page asks about windows that these hold.
func TestTiersComeAndChange(t *testing.T) {
	chromium(t)
	t.Parallel()
	s := &system{t: t, redis: stack.Redis(t), nats: stack.NATSProcess(t)}
	s.query = stack.Query(t, s.redis, "NATS_URL="+s.nats.URL(), stack.NoWait)
	b := open(t, s.query.URL()+"/?key=a", desktop)
	b.until("what to do, and nothing else", `/start ingest/.test(`+notice+`) && document.getElementById("main").innerText.trim() === ""`)
	s.ingest = stack.Ingest(t, s.nats, s.redis)
	s.js = s.nats.JetStream()
	s.hit("a")
	b.until("the total", value("a", "30d")+` === "1" && `+notice+` === ""`)
	s.ingest.Stop()
	err := s.redis.Client().FlushAll(t.Context()).Err()
	if err != nil {
		t.Fatal(err)
	}
	stack.Ingest(t, s.nats, s.redis, "TIERS=1s/1m,1m/1d")
	b.until("the windows of the new tiers", columns+` === "Counter,1 minute,15 minutes,1 hour,6 hours,24 hours" && `+value("a", "6h")+` === "1" && `+notice+` === ""`)
	b.clean(s.query.URL(), failedRequests...)
}
