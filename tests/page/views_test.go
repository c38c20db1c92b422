package page_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// write writes a file and returns its path.
func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "settings.yml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// namedLimits is a file of limits.
func namedLimits(t *testing.T) string {
	t.Helper()
	return "QUERY_LIMITS_FILE=" + write(t, `limits:
  - {name: login, window: 1h, max: 5, policy: log, fail: closed}
  - {name: per-route, window: 1m, max: 100, key: "{ip} {path}"}
`)
}

// take takes a hit, and says whether it was allowed.
func (s *system) take(body string) bool {
	s.t.Helper()
	status, _, err := stack.Do(http.MethodPost, s.query.URL()+"/v1/take", json.RawMessage(body))
	require.NoError(s.t, err)
	require.Contains(s.t, []int{http.StatusOK, http.StatusTooManyRequests}, status, "take %s", body)
	return status == http.StatusOK
}

// shownView is the view that one sees, by what is displayed.
const shownView = `["explore", "welcome", "limits", "alerts", "operate"].filter((id) => document.getElementById(id).offsetParent !== null || document.getElementById(id).getClientRects().length > 0).join()`

// The way between the views: by click and by keyboard, with the rest of the address kept, and back again.
// What another view readRange is not asked for meanwhile.
func TestViews(t *testing.T) {
	s := start(t)
	s.hit("a", "b")
	b := open(t, s.query.URL()+"/?key=a&range=24h", desktop)
	b.until("the total", hits("a")+` === "1"`)
	title := eval[string](b, "document.title")
	b.click(`#views a[data-to="limits"]`)
	b.until("the limits", shownView+` === "limits" && document.title.startsWith("Limits") && document.querySelector("#views [aria-current]").textContent === "Limits"`)
	b.until("the address", `/^\?key=a&range=24h.*&view=limits$/.test(location.search)`)
	b.until("what to do without limits", `/QUERY_LIMITS_FILE/.test(document.getElementById("limits-note").textContent)`)
	b.until("freshness", `document.getElementById("fresh").checkVisibility() && /^Live/.test(document.getElementById("fresh-text").textContent)`)
	others := func() int {
		return b.asks("/v1/total") + b.asks("/v1/live") + b.asks("/v1/top") + b.asks("/v1/streams")
	}
	before, asked := others(), b.asks("/v1/limits")
	stack.Eventually(t, "the limits to be asked for again", func() (bool, string) { return b.asks("/v1/limits") >= asked+3, "" })
	if now := others(); now != before {
		t.Errorf("%d questions of other views were asked", now-before)
	}
	eval[bool](b, `(document.querySelector('#views a[data-to="operate"]').focus(), true)`)
	b.press(kb.Enter)
	b.until("operate", shownView+` === "operate" && document.title.startsWith("Operate")`)
	eval[bool](b, "(history.back(), true)")
	b.until("the limits again", shownView+` === "limits" && document.title.startsWith("Limits")`)
	eval[bool](b, "(history.back(), true)")
	b.until("the counters again", shownView+` === "explore" && !location.search.includes("view")`)
	s.hit("a")
	b.until("a further hit", hits("a")+` === "2" && document.getElementById("fresh").dataset.state === "green"`)
	require.Equal(t, title, eval[string](b, "document.title"), "the title")
	b.clean(s.query.URL())

	other := open(t, s.query.URL()+"/?view=nonsense", desktop)
	other.until("the counters", shownView+` === "explore"`)
	other.clean(s.query.URL())
}

// lookAt fills in the form of the chosen limit, a field and its value in turn, and sends it.
func (b *tab) lookAt(values ...string) {
	b.t.Helper()
	b.until("the fields", fmt.Sprintf(`document.querySelectorAll("#use-fields input").length === %d`, len(values)/2))
	for i := 0; i < len(values); i += 2 {
		eval[bool](b, fmt.Sprintf(`(document.querySelector("#use-fields [name=%s]").value = %q, true)`, values[i], values[i+1]))
	}
	eval[bool](b, `(document.getElementById("use-form").requestSubmit(), true)`)
}

// How many are refused, how much of a limit a key has used, and how one resets it: with the mouse, and with
// the keyboard alone.
func TestLimitsView(t *testing.T) {
	s := start(t, namedLimits(t))
	for range 7 {
		s.take(`{"limit":"login","key":"alice"}`)
	}
	s.take(`{"limit":"login","key":"<b>\u202ebob"}`)
	s.take(`{"limit":"per-route","ip":"2001:db8::7","path":"/a b"}`)
	b := open(t, s.query.URL()+"/?view=limits", desktop)
	rows := `[...document.querySelectorAll("#limits-rows tr")].map((r) => [...r.children].map((c) => c.textContent).join("|"))`
	b.until("the limits", rows+`[0]?.startsWith("login|5 in 1 hour|") && `+rows+`[0].endsWith("|6|2|0") && `+rows+`[1].startsWith("per-route|100 in 1 minute|")`)
	b.lookAt("key", "alice")
	meter := `document.querySelector("#use-found [role=meter]")`
	b.until("the use of alice", meter+`?.getAttribute("aria-valuetext") === "5 of 5 used, 0 left" && /refused. It is allowed in/.test(document.getElementById("use-found").textContent)`)

	// A reset asks once more. Escape keeps the hits.
	b.click(`#use-reset button`)
	b.until("the question", `/Forget all hits of alice under login/.test(document.getElementById("use-reset").textContent) && document.activeElement.textContent === "Keep them"`)
	b.press(kb.Escape)
	b.until("the button again", `document.activeElement.textContent === "Reset…" && `+meter+`.getAttribute("aria-valuenow") === "5"`)
	b.press(kb.Enter)
	b.until("the question again", `document.activeElement.textContent === "Keep them"`)
	eval[bool](b, `([...document.querySelectorAll("#use-reset button")].find((b) => b.textContent === "Forget them").focus(), true)`)
	b.press(kb.Enter)
	b.until("the reset", meter+`.getAttribute("aria-valuetext") === "0 of 5 used, 5 left" && /Forgotten/.test(document.getElementById("use-reset").textContent)`)

	// By the keyboard: another key, and another limit, which has other fields.
	eval[bool](b, `(document.querySelector("#use-fields input").select(), document.querySelector("#use-fields input").focus(), true)`)
	b.press("z", "o", "e", kb.Enter)
	b.until("the use of zoe", `document.querySelector("#use-found h3").textContent === "zoe" && `+meter+`.getAttribute("aria-valuenow") === "0"`)
	eval[bool](b, `(document.querySelectorAll("#limits-rows button")[1].focus(), true)`)
	b.press(kb.Enter)
	b.until("the other limit", `document.querySelectorAll("#limits-rows button")[1].getAttribute("aria-pressed") === "true" && [...document.querySelectorAll("#use-fields label")].map((l) => l.textContent).join() === "Address,Path" && location.search.includes("limit=per-route")`)
	b.lookAt("ip", "2001:db8::7", "path", "/a b")
	b.until("its use", meter+`?.getAttribute("aria-valuetext") === "1 of 100 used, 99 left"`)
	b.clean(s.query.URL())
}

// The page tells apart a limit in shadow mode, one with slots and one with shares, and describes what a key
// has used in their words.
func TestLimitsViewOfOtherKinds(t *testing.T) {
	s := start(t, "QUERY_LIMITS_FILE="+write(t, `limits:
  - {name: exports, policy: concurrent, window: 1h, max: 2}
  - {name: shared, window: 1m, max: 1000, share: {hits: 100, for: 1s}}
  - {name: tried, window: 1h, max: 2, mode: shadow}
  - {name: tokens, window: 1h, max: 100}
`))
	for i := range 3 {
		require.Equal(t, i < 2, s.take(fmt.Sprintf(`{"limit":"exports","key":"alice","lease":"lease-%d"}`, i)), "place %d", i)
		if !s.take(`{"limit":"tried","key":"alice"}`) || !s.take(`{"limit":"shared","key":"alice"}`) {
			t.Fatal("refused")
		}
	}
	status, body, err := stack.Do(http.MethodPost, s.query.URL()+"/v1/take", map[string]any{"limit": "tokens", "key": "alice", "n": 40})
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status, string(body))
	b := open(t, s.query.URL()+"/?view=limits", desktop)
	rows := `[...document.querySelectorAll("#limits-rows tr")].map((r) => [...r.children].map((c) => c.textContent).join("|"))`
	for i, want := range []string{`^exports\|2 at once\|.*\|2\|1\|0$`, `^tried\|2 in 1 hour, shadow: refuses nothing\|.*\|2\|1\|0$`, `^shared\|1,000 in 1 minute, shares of 100\|.*\|3\|0\|0$`} {
		b.until("the row "+want, fmt.Sprintf(`new RegExp(%q).test(%s[%d])`, want, rows, i))
	}
	for i, c := range []struct{ about, used, next, state string }{
		{"exports allows 2 at once to each key. Hits are kept as leases", "2 of 2 used, 0 left", "The next place is refused. It is allowed in", "red"},
		{"tried allows 2 in 1 hour", "2 of 2 used, 0 left", "The next hit is too many. In shadow mode it is allowed, and not counted.", "red"},
		{"Each process takes up to 100 hits in advance.", "of 1,000 used", "The next hit is allowed.", "green"},
		{"tokens allows 100 in 1 hour", "40 of 100 used, 60 left", "The next hit is allowed.", "green"},
	} {
		eval[bool](b, fmt.Sprintf(`(document.querySelectorAll("#limits-rows button")[%d].click(), true)`, i))
		b.until("about "+c.about, fmt.Sprintf(`document.getElementById("use-about").textContent.includes(%q)`, c.about))
		b.lookAt("key", "alice")
		b.until("the use of alice: "+c.used, fmt.Sprintf(`document.querySelector("#use-found .used")?.textContent.includes(%q) && document.querySelector("#use-found [data-part=next]").textContent.startsWith(%q) && document.querySelector("#use-found [role=meter]").dataset.state === %q`, c.used, c.next, c.state))
	}
	b.clean(s.query.URL())
}

// A limit whose decisions count has bars of them, of the sum of its keys or of the counter of each, and the
// keys that are refused most. Another one says how to get them.
func TestLimitsViewHasTheLastDay(t *testing.T) {
	s := start(t, "QUERY_LIMITS_FILE="+write(t, `limits:
  - {name: plan.pro, window: 1h, max: 2, count: {allowed: ["of.{key}", "usage.{limit}", "all"], refused: "refused.{limit}.{key}"}}
  - {name: tried, window: 1h, max: 2, mode: shadow, count: {would_refuse: "try.{key}"}}
  - {name: without, window: 1h, max: 2}
`))
	for range 3 {
		s.hit("usage.plan:pro")
	}
	for _, counter := range []string{"of.alice", "all", "refused.plan:pro.alice", "refused.plan:pro.alice", "refused.plan:pro.<b>bob", "try.zoe"} {
		s.hit(counter)
	}
	stack.EventuallyTotal(t, s.query.URL(), "try.zoe", "1h", 1)
	b := open(t, s.query.URL()+"/?view=limits&limit=plan.pro", desktop)
	text := `document.getElementById("limit-history").innerText`
	bars := `document.querySelector("#limit-history .bars")`
	b.until("the bars", bars+`?.getAttribute("aria-label") === "In the last 24 hours: 3 hits allowed, 3 refused" && `+bars+`.children.length === 48`)
	b.until("bars that are seen", `["allowed", "refused"].every((part) => [...`+bars+`.querySelectorAll("b." + part)].some((b) => b.offsetHeight > 10))`)
	b.until("who is refused most", `[...document.querySelectorAll("#limit-history .most li")].map((li) => li.textContent).join() === "alice2,<b>bob1" && new URL(document.querySelector(".most a").href).searchParams.get("key") === "refused.plan:pro.alice"`)
	eval[bool](b, `(document.querySelector("#limit-history .most a").focus(), document.querySelector("#limit-history .bars").seen = true)`)
	s.hit("usage.plan:pro")
	b.until("a further hit", bars+`.getAttribute("aria-label") === "In the last 24 hours: 4 hits allowed, 3 refused" && !`+bars+`.seen && document.activeElement.textContent === "alice"`)
	eval[bool](b, `(document.querySelector("#limit-history .bars").seen = true)`)
	asked := b.asks("/v1/series")
	stack.Eventually(t, "the history to be asked for again", func() (bool, string) { return b.asks("/v1/series") >= asked+4, "" })
	require.True(t, eval[bool](b, bars+`.seen`), "bars that have not changed are not drawn again")
	choose := func(i int) {
		eval[bool](b, fmt.Sprintf(`(document.querySelectorAll("#limits-rows button")[%d].click(), true)`, i))
	}
	choose(1)
	b.until("the limit in shadow mode", bars+`?.getAttribute("aria-label") === "In the last 24 hours: 0 hits allowed, 1 would be refused" && /Most over the limit\s+zoe/.test(`+text+`)`)
	choose(2)
	b.until("how to count", `/name: without\n +count:\n +allowed: \["sum.usage.{limit}", "usage.{limit}.{key}"\]\n +refused: /.test(`+text+`)`)
	b.clean(s.query.URL())
}

// With 1,100 keys the sums of a limit's decisions are right, and words say what keys beyond the ten largest
// have. If the service does not add up that many, the ten largest are drawn.
func TestLimitsViewOfManyKeys(t *testing.T) {
	limits := "QUERY_LIMITS_FILE=" + write(t, `limits:
  - {name: plan, window: 1h, max: 2, count: {allowed: "usage.{limit}.{key}", refused: "refused.{limit}.{key}"}}
`)
	s := start(t, limits)
	var sum, listed int64
	for chunk := range 11 {
		var all []some
		for i := range 100 {
			key := chunk*100 + i
			refused := 1 + int64(1000/(key+1))
			all = append(all, some{fmt.Sprintf("usage.plan.%d", key), 2, 0}, some{fmt.Sprintf("refused.plan.%d", key), refused, 0})
			sum += refused
			if key < 10 {
				listed += refused
			}
		}
		s.publishAll(all...)
	}
	text := `document.getElementById("limit-history").innerText`
	b := open(t, s.query.URL()+"/?view=limits&limit=plan", desktop)
	b.until("exact sums", fmt.Sprintf(`document.querySelector("#limit-history .bars")?.getAttribute("aria-label").replaceAll("\u202f", "").replaceAll(",", "") === "In the last 24 hours: 2200 hits allowed %d refused"`, sum))
	b.until("what the others have", fmt.Sprintf(`%s.replaceAll(",", "").includes("1090 more: %d hits.") && document.querySelectorAll("#limit-history .most li").length === 10`, text, sum-listed))
	b.clean(s.query.URL())

	few := *s
	few.query = stack.Query(t, s.redis, "NATS_URL="+s.nats.URL(), limits, "QUERY_MAX_SUM=1000")
	b = open(t, few.query.URL()+"/?view=limits&limit=plan", desktop)
	b.until("the ten largest", text+`.includes("The 10 largest of refused.plan.* are drawn. All others: at most ") && /All others: at most \d+ hits each\./.test(`+text+`) && document.querySelectorAll("#limit-history .most li").length === 10 && !/QUERY_MAX_SUM/.test(`+text+`)`)
	b.clean(few.query.URL(), failedRequests...)
}

// A service that counts no takes resets nothing, and an answer that refuses is said.
func TestLimitsViewWithoutTakes(t *testing.T) {
	s := start(t, namedLimits(t), "QUERY_TAKE=off")
	b := open(t, s.query.URL()+"/?view=limits&limit=per-route", desktop)
	b.until("why nothing is counted", `/QUERY_TAKE=off/.test(document.getElementById("limits-note").textContent)`)
	b.until("the limit of the address", `document.querySelectorAll("#limits-rows button")[1]?.getAttribute("aria-pressed") === "true" && document.querySelectorAll("#use-fields input").length === 2`)
	eval[bool](b, `(document.querySelector('[name=ip]').value = "nowhere", document.querySelector('[name=path]').value = "/", document.getElementById("use-form").requestSubmit(), true)`)
	b.until("what is wrong", `/Ip: "nowhere": must be an address/.test(document.querySelector("#use-found [role=alert]")?.textContent)`)
	eval[bool](b, `(document.querySelector('[name=ip]').value = "192.0.2.1", document.getElementById("use-form").requestSubmit(), true)`)
	b.until("the use", `/0 of 100 used/.test(document.getElementById("use-found").textContent)`)
	require.Equal(t, 0, eval[int](b, `document.querySelectorAll("#use-found button").length`), "buttons to reset")
	b.clean(s.query.URL(), failedRequests...)
}

// What was refused: by reason, in pages, per hour, and the command that sends it again.
func TestRejectsView(t *testing.T) {
	s := start(t)
	for i := range 12 {
		s.publish("hits.a", fmt.Sprintf(`{"kay":%d`, i))
	}
	s.publish("hits.a", `{"ts":"2020-01-01T00:00:00Z"}`)
	s.hit("a")
	stack.EventuallyTotal(t, s.query.URL(), "a", "1h", 1)
	b := open(t, s.query.URL()+"/?view=operate", desktop)
	bodies := `[...document.querySelectorAll("#rejects-list pre")].map((p) => p.textContent)`
	b.until("the newest", bodies+`.length === 10 && `+bodies+`[0].includes("2020")`)
	b.until("the reasons", `[...document.querySelectorAll("#rejects-reasons span")].map((s) => s.textContent).join() === "all 13,bad_json 12,too_late 1"`)
	b.until("the hours", `/^Refused per hour: 13 in the last 24 hours/.test(document.querySelector(".bars").getAttribute("aria-label")) && document.querySelectorAll(".bars i").length === 24`)
	command := `document.getElementById("redrive").textContent`
	b.until("the command", command+` === "redrive --ts now"`)
	older, newer := `#rejects-pages button:nth-of-type(2)`, `#rejects-pages button:nth-of-type(1)`
	b.click(older)
	b.until("the older ones", bodies+`.length === 3 && document.querySelector("`+older+`").disabled && /Page 2/.test(document.getElementById("rejects-pages").textContent)`)
	b.click(newer)
	b.until("the newest again", bodies+`.length === 10 && document.querySelector("`+newer+`").disabled`)
	eval[bool](b, `(document.querySelector("#rejects-reasons input:checked").focus(), true)`)
	b.press(kb.ArrowLeft) // around to the last one
	b.until("those that are too late", bodies+`.length === 1 && `+command+` === "redrive --reason too_late --ts now"`)
	require.Equal(t, "too_late", eval[string](b, `document.activeElement.value`), "the focus is on")
	b.click(`#rejects-list summary`)
	eval[int](b, `document.querySelector("#rejects-list details").seen = 1`)
	s.publish("hits.a", `{"kay"`)
	b.until("a further one", `document.querySelector('#rejects-reasons input[value=""] + span').textContent === "all 14"`)
	if !eval[bool](b, `document.querySelector("#rejects-list details").open && document.querySelector("#rejects-list details").seen === 1`) {
		t.Error("what one reads was drawn anew")
	}
	b.click(`.command button`)
	b.until("the copy", `/Copied|Selected/.test(document.querySelector(".command button").textContent)`)
	b.clean(s.query.URL())
}

// watch starts the program watch with one rule of the test's, and one that says how many hits a has.
func (s *system) watch(rule string) *stack.Service {
	s.t.Helper()
	text := "targets: {bus: {nats: tallyroll.alert}}\nrules:\n- {name: errors, key: a, window: 1h, above: 0, to: [bus]}\n- " + rule + "\n"
	return stack.Watch(s.t, s.nats, s.redis, write(s.t, text))
}

// The states of rules and their changes: what fires first, with a word about each, and what to do if nobody
// evaluates.
func TestAlertsView(t *testing.T) {
	s := start(t)
	s.hit("a")
	stack.EventuallyTotal(t, s.query.URL(), "a", "1h", 1)
	b := open(t, s.query.URL()+"/?view=alerts", desktop)
	trouble := `document.getElementById("alerts-trouble").textContent`
	b.until("what to do", `/WATCH_FILE/.test(`+trouble+`) && document.getElementById("alerts-parts").hidden`)
	b.until("what to copy", `[...document.querySelectorAll("#alerts-trouble pre")].map((p) => p.textContent).join().endsWith("WATCH_FILE=watch.yml watch")`)
	b.click("#alerts-trouble .command button")
	b.until("the copy", `/Copied|Selected/.test(document.querySelector("#alerts-trouble .command button").textContent)`)
	w := s.watch("{name: sales, key: <b>shop</b>, window: 1h, below: 5, to: [bus]}\n" +
		"- {name: silence, all: true, window: 1h, below: 1, to: [bus]}")
	row := func(n int) string { return fmt.Sprintf(`document.querySelector("#alerts-rows tr:nth-child(%d)")`, n) }
	b.until("the states", row(2)+`?.textContent.includes("<b>shop</b>") && /unknown/.test(`+row(2)+`.textContent) && /counting began/.test(`+row(2)+`.textContent)`)
	b.until("the sum of all", `/all hits below 1 in 1 hour/.test(`+row(3)+`?.textContent)`)
	b.until("what fires first", `/errors/.test(`+row(1)+`.textContent) && `+row(1)+`.querySelector(".words").dataset.state === "red"`)
	b.until("the condition, and the total now", `/a above 0 in 1 hour/.test(`+row(1)+`.textContent) && `+row(1)+`.lastElementChild.textContent === "1"`)
	bar := row(1) + `.querySelector(".timeline")`
	b.until("the last day", `/^The last day: firing from \d\d:\d\d to now$/.test(`+bar+`.getAttribute("aria-label")) && `+bar+`.querySelector(".firing").getBoundingClientRect().width < 2`)
	// The page's own state colours nothing of it.
	b.until("the time that nobody knows of", `getComputedStyle(`+bar+`.querySelector("i:not([data-state])")).backgroundColor === "rgba(0, 0, 0, 0)"`)
	b.click(`#alerts-rows tr:nth-child(1) button`)
	b.until("its chart", `document.querySelector("#alert-plot .before") && /^Hits in 1 hour: 1 now, at most 1/.test(document.getElementById("alert-note").textContent) && document.querySelector("#alert-plot svg").textContent.includes("above 0")`)
	b.until("the counts", `[...document.querySelectorAll("#alerts-kinds span")].map((s) => s.textContent).join() === "all 3,firing 1,unknown 1,pending 0,resolved 0,ok 1"`)
	b.until("the changes", `document.querySelectorAll("#alerts-changes li").length === 3 && /no target was notified/.test(document.getElementById("alerts-changes").textContent)`)
	b.click(`#alerts-kinds label:nth-of-type(2)`)
	b.until("what fires", `document.querySelectorAll("#alerts-rows tr").length === 1 && document.querySelectorAll("#alerts-changes li").length === 1`)
	w.Stop()
	b.until("that nobody evaluates", `/no watch runs/.test(`+trouble+`) && document.getElementById("alerts-trouble").classList.contains("bad")`)
	b.clean(s.query.URL())
}

// A group has its total now, of those with the rule's prefix. What is used of a limit is no counter's hits,
// so it has neither total nor chart here, and the page says why.
func TestAlertsOfGroupsAndLimits(t *testing.T) {
	limits := write(t, "limits:\n- {name: pro, window: 1h, max: 10, count: {nearly: 'nearly.{limit}.{key}', at: 50%}}\n")
	s := start(t, "QUERY_LIMITS_FILE="+limits)
	s.hit("shop.cart.eu", "shop.cart.us", "shop.cartoon.x", "a")
	s.take(`{"limit":"pro","key":"alice","n":9}`)
	stack.Watch(t, s.nats, s.redis, write(t, `targets: {bus: {nats: tallyroll.alert}}
rules:
- {name: groups, prefix: shop.cart, group: 2, window: 1h, above: 0, to: [bus]}
- {name: used, limit: pro, above: 50%, to: [bus]}
- {name: silence, all: true, window: 1h, below: 1, to: [bus]}
`), "WATCH_LIMITS_FILE="+limits)
	b := open(t, s.query.URL()+"/?view=alerts", desktop)
	row := func(key string) string {
		return fmt.Sprintf(`[...document.querySelectorAll("#alerts-rows tr")].find((row) => row.innerText.includes(%q))`, key)
	}
	b.until("the totals of groups", row("shop.cart above")+`?.lastElementChild.textContent === "2" && `+row("shop.cartoon")+`?.lastElementChild.textContent === "1"`)
	b.until("the sum of all hits", row("all hits below")+`?.lastElementChild.textContent === "4"`)
	b.until("no number of a rule as a whole", row("all keys above")+`?.children[4].textContent === ""`)
	b.until("what is used of the limit, and no hits of its counter", row("nearly.pro.alice")+`?.children[4].textContent.startsWith("9") && `+row("nearly.pro.alice")+`.lastElementChild.textContent === ""`)
	eval[bool](b, `(`+row("nearly.pro.alice")+`.querySelector("button").click(), true)`)
	b.until("why it has no chart", `/^No chart: the limit pro says what is used now/.test(document.getElementById("alert-note").textContent)`)
	b.clean(s.query.URL())
}

// Between two steps of the chart of a rule, a window can have more hits than those that end with the steps.
func TestChartOfARuleMissesNoPeak(t *testing.T) {
	s := start(t)
	s.hit("a")
	stack.EventuallyTotal(t, s.query.URL(), "a", "1h", 1)
	s.watch("{name: sales, key: shop, window: 1h, below: 5, to: [bus]}")
	r := s.retell(t, func(_ string, at time.Time, _ time.Duration) int64 {
		if at.Truncate(time.Hour).Equal(at) {
			return 5 // so each hour that ends with a step has 5, and one that ends within such a step up to 10
		}
		return 0
	})
	b := open(t, r.URL+"/?view=alerts", desktop)
	b.click(`#alerts-rows tr:nth-child(1) button`)
	b.until("the peak", `/^Hits in 1 hour: 5 now, at most 10 in/.test(document.getElementById("alert-note").textContent)`)
	b.clean(r.URL)
}

// The bar of a rule shows no state for the time before its first change, or while it was removed.
func TestBarOfARuleShowsNothingUnknown(t *testing.T) {
	s := start(t)
	b := open(t, s.query.URL()+"/?view=alerts", desktop)
	label := `(() => {
		window.testRule ??= (import(document.querySelector("script[type=module]").src.replace("main.js", "rule.js")).then((m) => window.testRule = m), {});
		const now = new Date(2026, 10, 21, 20).getTime(), hour = (n) => new Date(now - (20 - n) * 3_600_000).toISOString();
		const changes = [[8, "ok", ""], [12, "firing", "ok"], [13, "resolved", "firing"], [15, "ok", ""], [18, "unknown", "ok"]]
			.map(([n, state, previous]) => ({ at: hour(n), state, ...(previous ? { previous } : {}) })).reverse();
		return window.testRule.timeline?.({ state: "unknown", since: hour(18) }, changes, 0, now).getAttribute("aria-label");
	})()`
	b.until("the bar", label+` === "The last day: ok from 08:00 to 12:00, firing from 12:00 to 13:00, ok from 15:00 to 18:00, unknown from 18:00 to now"`)
	b.clean(s.query.URL())
}

// All views ask for a token, say if it is refused, and keep the right one for the tab.
func typeTokens(t *testing.T, s *system) {
	for view, shown := range map[string]string{
		"key=a":        hits("a") + ` === "1"`,
		"view=limits":  `document.querySelectorAll("#limits-rows tr").length === 2`,
		"view=alerts":  `/No rules are watched/.test(document.getElementById("alerts-trouble").textContent)`,
		"view=operate": `document.querySelectorAll("#streams tbody tr").length === 1`,
	} {
		b := open(t, s.query.URL()+"/?"+view, desktop)
		b.until("the question", `document.getElementById("token").open && document.activeElement.id === "token-value"`)
		b.press("w", "r", "o", "n", "g", kb.Enter)
		b.until("the refusal", `document.getElementById("token").open && /refused/.test(document.getElementById("token-error").textContent)`)
		b.press("s", "e", "c", "r", "e", "t", kb.Enter)
		b.until("the view", shown)
		eval[bool](b, `location.reload() ?? true`)
		b.until("the view again", shown+` && !document.getElementById("token").open`)
		b.clean(s.query.URL(), failedRequests...)
	}
}

// Neither view is wider than a phone, whatever the names, and nothing is read on a ground that hides it:
// contrast AA, in light and dark.
func TestViewsOnPhoneAndDark(t *testing.T) {
	s := start(t, namedLimits(t))
	long := strings.Repeat("a-very-long-name.", 12)
	for range 7 {
		s.take(fmt.Sprintf(`{"limit":"login","key":%q}`, long))
	}
	s.publish("hits."+strings.TrimSuffix(long, "."), strings.Repeat("9", 700))
	s.hit("a")
	stack.EventuallyTotal(t, s.query.URL(), "a", "1h", 1)
	s.watch(fmt.Sprintf("{name: %s, prefix: %q, window: 1h, below: 1, to: [bus]}", strings.Repeat("long-", 12), long))
	for _, as := range []looks{phone, {320, 640, "light"}, {768, 900, "dark"}, {1440, 900, "light"}, {390, 844, "dark"}}[:stack.Rounds(3, 5)] {
		b := open(t, s.query.URL()+"/?view=limits", as)
		b.lookAt("key", long)
		b.until("the use", `document.querySelector("#use-found [role=meter]")`)
		b.requireLegible(as)
		b.click(`#views [data-to="operate"]`)
		b.until("the reject", `document.querySelector("#rejects-list details")`)
		eval[bool](b, `(document.querySelector("#rejects-list details").open = true)`)
		b.requireLegible(as)
		b.click(`#views [data-to="alerts"]`)
		b.until("the states", `document.querySelectorAll("#alerts-rows tr").length === 2`)
		b.requireLegible(as)
		b.clean(s.query.URL())
	}
}

// The API's index opens the kinds of problems where a type leads, leads back, and leads to an operation,
// which is open on the page of its group. That sends what one tries with the token that the page has kept.
// Swagger UI works under the policy of the page.
func tryDocs(t *testing.T, s *system) {
	b := open(t, s.query.URL()+"/docs#problem-not-stored", phone)
	b.until("the kind of problem", `document.querySelector("#problem-not-stored:target")?.getBoundingClientRect().height > 0`)
	b.until("the operations", `document.querySelectorAll("#groups li a").length > 15`)
	b.requireLegible(phone)
	b.click("header a[href='/']")
	b.until("the question", `document.getElementById("token")?.open`)
	b.press("s", "e", "c", "r", "e", "t", kb.Enter)
	b.until("the page", `!document.getElementById("token").open && document.querySelector("#views")`)
	b.click(`#views a[href="docs"]`)
	b.click("a[href='/docs/ask#/Ask/get-about']")
	b.until("one group", `document.querySelector("#operations-Ask-get-about.is-open") && !document.querySelector("[id^=operations-Operate]")`)
	for _, next := range []string{".try-out__btn", ".execute"} {
		b.click("#operations-Ask-get-about " + next)
	}
	b.until("the answer", `/200[^]*"namespace": "tallyroll"/.test(document.querySelector("#operations-Ask-get-about .live-responses-table")?.innerText)`)
	b.requireLegible(phone)
	b.clean(s.query.URL(), failedRequests...)
}
