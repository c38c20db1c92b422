package page_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// What a newcomer sees: how to publish a first hit, and then the hit, without a reload. Later hits move the
// total, over a live connection.
func TestFirstHits(t *testing.T) {
	s := start(t)
	b := open(t, s.query.URL()+"/", desktop)
	b.until("the empty state", `!document.getElementById("welcome").hidden && document.getElementById("explore").hidden`)
	eval[int](b, "window.notReloaded = 1")
	s.hit("first")
	b.until("the first hit", hits("first")+` === "1"`)
	b.until("the empty state to go", `document.getElementById("welcome").hidden && document.querySelector("#plot .drawing")`)
	b.until("a young counter to be called so, once", `/^since [0-9:]+$/.test(document.getElementById("hits-note").textContent)`)
	b.until("freshness", `document.getElementById("fresh").dataset.state === "green" && /^Live · [0-9.]+ s behind$/.test(document.getElementById("fresh-text").textContent)`)
	require.Equal(t, "15m", eval[string](b, `document.querySelector("#range input:checked").value`), "the range for what is seconds old")
	for n := 2; n <= 3; n++ {
		s.hit("first")
		b.until("a further hit", hits("first")+fmt.Sprintf(` === "%d"`, n))
	}
	require.NotZero(t, b.asks("/v1/live"), "live connections")
	b.point(`#rows tr[data-key="first"] .total`)
	b.until("the bounds to be explained", `/^first3 counted\.Counting began at /.test(document.getElementById("tip").textContent) && !document.getElementById("tip").hidden`)
	if eval[int](b, "window.notReloaded || 0") != 1 {
		t.Error("the page was reloaded")
	}
	b.clean(s.query.URL())
}

// Above the chart, in the first screen of a phone, stands the sum of all counters. A young namespace has
// changes, too: of two periods that were counted. The column of changes lists first what has grown most. One
// counter has a panel.
func TestAnswersAtAGlance(t *testing.T) {
	s := start(t)
	s.hit("falls", "falls", "falls", "grows")
	b := open(t, s.query.URL()+"/", phone)
	b.until("the sum of all counters", `document.getElementById("sum-name").textContent === "All hits" && document.querySelector("#sum-hits b").textContent === "4" && /^since [0-9:]+$/.test(document.querySelector("#sum-hits .note").textContent)`)
	b.until("it and the chart in the first screen", `document.getElementById("summary").getBoundingClientRect().bottom < document.getElementById("plot").getBoundingClientRect().top && document.getElementById("plot").getBoundingClientRect().bottom < 844`)
	b.until("a rate", `/^[0-9.]+$/.test(document.querySelector("#sum-rate b").textContent)`)
	b.click(`#column label:nth-of-type(2)`)
	stack.Eventually(t, "what grows to be first, with a change of two periods", func() (bool, string) {
		s.hit("grows")
		text := eval[string](b, listed+` + " " + `+cell("grows", ".change"))
		return strings.HasPrefix(text, "grows,falls ") && (strings.Contains(text, "% in ") || strings.Contains(text, "new in ") || strings.Contains(text, "× ")), text
	})
	b.click(`#rows tr[data-key="falls"]`) // in place of the sum
	b.until("its figures", `document.getElementById("sum-name").textContent === "falls" && document.querySelector("#sum-hits b").textContent === "3" && document.querySelector("#sum-peak b").textContent === "3" && /^Peak per /.test(document.getElementById("sum-peak").textContent)`)
	b.until("the panel", `document.getElementById("counter-title").textContent === "falls" && /^1 minute[0-9]/.test(document.getElementById("counter-facts").textContent)`)
	b.until("room for a finger", smallTargets+` === ""`)
	b.until("all notes on the chart", `((note) => note.textContent.length > 20 && note.scrollWidth <= note.clientWidth)(document.getElementById("chart-note"))`)
	b.click(`#rows tr[data-key="grows"]`) // together with the other
	b.until("the figures of both together", `document.getElementById("sum-name").textContent === "falls + grows" && Number(document.querySelector("#sum-hits b").textContent) > 3 && document.querySelector("#sum-hits b").textContent === String(3 + Number(`+hits("grows")+`))`)
	b.clean(s.query.URL())
}

// smallTargets evaluates to what can be clicked and is lower or narrower than 24 pixels (WCAG 2.2, 2.5.8).
// Links in sentences are exempt.
const smallTargets = `[...document.querySelectorAll("a, button, select, summary, label:has(input)")].map((node) => [node, node.getBoundingClientRect()])
	.filter(([node, { width, height }]) => node.checkVisibility({ visibilityProperty: true }) && !node.matches(".skip, footer a") && width > 0 && Math.min(width, height) < 23.9 && !node.closest("fieldset label, .hidden"))
	.map(([node, { width, height }]) => node.outerHTML.slice(0, 80) + " " + width + "x" + height).join("\n")`

// What a range lacks stands next to its title, whole, at every width; so does the heading of the hits.
func TestWhatARangeLacksIsWhole(t *testing.T) {
	s := start(t)
	s.hit("a")
	s.publishAll(ago("b", 5, 24*time.Hour-30*time.Second)) // in the cell that the range cuts
	stack.EventuallyTotal(t, s.query.URL(), "a", "24h", 1)
	var tabs []*tab
	for _, as := range []looks{phone, {768, 900, "dark"}, {1024, 900, "light"}, {1440, 900, "dark"}} {
		tabs = append(tabs, open(t, s.query.URL()+"/?range=24h", as))
	}
	whole := func(note string) {
		t.Helper()
		for _, b := range tabs {
			b.until("the note", note+`.test(document.getElementById("hits-note").textContent)`)
			if cut := eval[[]string](b, `[...document.querySelectorAll("#hits-note, #explore .head *, #rows-table thead *")].filter((node) => node.checkVisibility() && !node.closest(".hidden") && node.scrollWidth > node.clientWidth + 1 && node.clientWidth > 0).map((node) => node.innerText)`); len(cut) > 0 {
				t.Errorf("cut off: %q", cut)
			}
		}
	}
	whole(`/^since [0-9:]+/`)
	s.ingest.Kill()
	whole(`/^upper bound unknown$/`)
}

// Hits of a time before counting began are not 0, and nothing is exact about them. A range whose period
// before no tier holds is not compared, and the switch says why.
func TestRangesThatNobodyCounted(t *testing.T) {
	s := start(t)
	s.hit("a")
	b := open(t, s.query.URL()+"/?key=a&range=yesterday", desktop)
	b.until("no number", hits("a")+` === "–" && `+cell("a", ".change")+` === "–" && document.getElementById("hits-note").textContent === "not counted"`)
	b.until("why", `/^Counting began at .+, after this range: what happened in it was not counted\.$/.test(document.getElementById("list-note").textContent)`)
	b.until("the chart to say so", `/^Counting began at [^.]+\. The period before was not counted\.$/.test(document.getElementById("chart-note").textContent) && [...document.querySelectorAll("#plot text")].some((text) => text.textContent === "not counted")`)
	b.point(`#rows tr[data-key="a"] .total`)
	b.until("the tip to say so", `/^aCounting began at /.test(document.getElementById("tip").textContent)`)
	const compared, label = `document.getElementById("compare")`, `document.querySelector("#compare + span").textContent`
	b.click(`#range input[value="30d"]`)
	b.until("no comparison, and why", `!`+compared+`.checked && `+compared+`.disabled && `+label+` === "Compare with the period before: no tier reaches back to it"`)
	b.until("no changes", `document.getElementById("rows-table").dataset.compare === "no"`)
	b.click(`#range input[value="24h"]`)
	b.until("the comparison again", compared+`.checked && !`+compared+`.disabled && `+label+` === "Compare with the period before" && document.getElementById("rows-table").dataset.compare === "yes"`)
	b.clean(s.query.URL())
}

// A young counter that explodes is not said to fall: the hits of the open minute are a part of the period
// that is compared, which ends at as_of.
func TestChangeHasTheNewestHits(t *testing.T) {
	s := start(t)
	s.hit("a")
	stack.EventuallyTotal(t, s.query.URL(), "a", "1h", 1)
	err := s.redis.Client().HSet(t.Context(), "tallyroll:streams", ".began", time.Now().Add(-6*time.Minute).UnixMilli()).Err()
	require.NoError(t, err)
	s.publishAll(ago("explodes", 40, 4*time.Minute+30*time.Second), ago("explodes", 900, 0))
	b := open(t, s.query.URL()+"/?range=15m", desktop)
	b.until("how much more there is", hits("explodes")+` === "940" && /^(× [0-9]+|\+[0-9]+.%) in /.test(`+cell("explodes", ".change")+`)`)
	b.until("the same above the chart", `/^(× [0-9]+|\+[0-9]+.%) in /.test(document.getElementById("sum-change").textContent)`)
	b.clean(s.query.URL())
}

// 30 days are 30 bars, each a day of the reader's. The only root of a tree is open.
func TestDaysAreBars(t *testing.T) {
	s := start(t)
	s.publishOldHits()
	for day := range 40 {
		s.publishAll(ago("shop.cart", 5, time.Duration(day)*24*time.Hour), ago("shop.pay", 5, time.Duration(day)*24*time.Hour))
	}
	b := open(t, s.query.URL()+"/?range=30d", desktop)
	b.until("30 days", `document.getElementById("plot").dataset.step === "1d" && document.getElementById("plot").dataset.points === "30"`)
	b.until("no step that divides them, unless one asks", `document.getElementById("step").value === "1d"`)
	b.until("the tree, open", listed+` === "shop,cart,pay"`)
	b.click(`#rows tr[data-prefix="shop."] .caret`)
	b.until("closed by its reader", listed+` === "shop"`)
	b.clean(s.query.URL())
}

// One finds and adds counters by the keyboard alone, goes through the tree, reads bounds and points of the
// chart, and takes a counter out. The address and the title follow, and show the same view to another reader.
func TestKeyboardOnly(t *testing.T) {
	s := start(t)
	s.hit("shop.cart", "shop.cart", "shop.checkout", "blog", "zoo")
	for key, n := range map[string]int64{"shop.cart": 2, "shop.checkout": 1, "blog": 1, "zoo": 1} { // an only root is opened
		stack.EventuallyTotal(t, s.query.URL(), key, "1h", n)
	}
	b := open(t, s.query.URL()+"/?key=blog&range=1h&someone=else", desktop)
	b.until("the chosen counter", hits("blog")+` === "1"`)
	// As a keyboard does it: the text comes with the key, so that a page that takes the key gets no text.
	for _, kind := range []input.DispatchKeyEventType{input.DispatchKeyEventTypeKeyDown, input.DispatchKeyEventTypeKeyUp} {
		_, err := chromedp.Call(b.ctx, input.DispatchKeyEvent, input.DispatchKeyEventParams{Type: kind, Key: "/", Code: "Slash", Text: "/"})
		b.must(err)
	}
	b.until("the search to have the focus", `document.activeElement.id === "search"`)
	b.press("P", ".", "c")
	b.until("the names that have it in them", listed+` === "shop.cart,shop.checkout"`)
	b.press(kb.ArrowDown)
	b.until("the first name to have the focus", `document.activeElement.dataset.key === "shop.cart"`)
	b.press(kb.ArrowDown, kb.Enter)
	b.until("the added counter", on+` === "shop.checkout" && /key=blog&key=shop.checkout/.test(location.search)`)
	b.press(kb.ArrowUp, kb.ArrowUp)
	b.until("the search again", `document.activeElement.id === "search"`)
	b.press(kb.Escape)
	b.until("the tree, with the line that it hides above it", listed+` === "shop.checkout,shop,blog,zoo" && location.search === "?key=blog&key=shop.checkout&range=1h&someone=else"`)
	require.Equal(t, "blog, shop.checkout · Tallyroll", eval[string](b, "document.title"), "the title")
	b.tabTo(`#rows tr`)
	b.until("one row to be reached by Tab", `document.querySelectorAll('#rows tr[tabindex="0"]').length === 1`)
	b.until("its bounds", `!document.getElementById("tip").hidden && /shop\.checkout1 counted\./.test(document.getElementById("tip").textContent) && document.activeElement.getAttribute("aria-describedby") === "tip"`)
	b.press(kb.Escape)
	b.until("the bounds to go", `document.getElementById("tip").hidden`)
	b.press(kb.ArrowDown, kb.ArrowRight)
	b.until("what shop is made of, each once", listed+` === "shop,cart,checkout,blog,zoo" && document.activeElement.getAttribute("aria-expanded") === "true"`)
	b.press(kb.ArrowRight)
	b.until("its first child", `document.activeElement.dataset.key === "shop.cart" && document.activeElement.getAttribute("aria-level") === "2"`)
	b.press(kb.ArrowLeft)
	b.until("its parent", `document.activeElement.dataset.prefix === "shop."`)
	b.press(" ")
	b.until("the sum in the chart", on+` === "shop.*,shop.checkout,blog" && location.search === "?key=blog&key=shop.checkout&prefix=shop.&range=1h&someone=else"`)
	b.until("three lines", `new Set([...document.querySelectorAll("#plot path.line")].map((l) => l.dataset.line)).size === 3`)
	b.press(kb.ArrowLeft, kb.End)
	b.until("the last row, and no children", listed+` === "shop.checkout,shop,blog,zoo" && document.activeElement.dataset.key === "zoo"`)
	b.press(kb.Home, kb.Enter)
	b.until("the counter to be out of the chart", `location.search === "?key=blog&prefix=shop.&range=1h&someone=else"`)
	b.until("two lines", `new Set([...document.querySelectorAll("#plot path.line")].map((l) => l.dataset.line)).size === 2`) // none takes a key while they are loaded
	b.tabTo("#plot")
	b.press(kb.Home, kb.End)
	b.until("a reading of both lines", `/blog [01], shop\.\* [0-3]$/.test(document.getElementById("plot").getAttribute("aria-valuetext")) && !document.getElementById("reading").hidden`)
	other := open(t, s.query.URL()+"/"+eval[string](b, "location.search"), desktop)
	other.until("the shared view", on+` === "shop.*,blog"`)
	b.clean(s.query.URL())
}

// The chart has the points that the API gives, for every range, and one line for each counter.
func TestChart(t *testing.T) {
	s := start(t)
	s.hit("a", "a", "b", "b", "b")
	stack.EventuallyTotal(t, s.query.URL(), "b", "1h", 3)
	s.publishOldHits()
	for _, c := range []struct {
		length, step string
		back         time.Duration
	}{{"1m", "1s", time.Minute - 5*time.Second}, {"1h", "5m", time.Hour - 5*time.Second}, {"24h", "15m", 24*time.Hour - 86400*time.Millisecond}, {"7d", "6h", 7*24*time.Hour - 604800*time.Millisecond}, {"30d", "1d", time.Since(time.Now().AddDate(0, 0, -29).Truncate(24 * time.Hour))}} {
		b := open(t, s.query.URL()+"/?key=a&key=b&range="+c.length+"&step="+c.step, desktop)
		stack.Eventually(t, "the points of "+c.length, func() (bool, string) {
			got := eval[string](b, `(document.getElementById("plot").dataset.points ?? "") + " of " + document.getElementById("plot").dataset.step`)
			want := pointsOf(t, s.query.URL(), c.back, c.step)
			return got == want, fmt.Sprintf("the chart has %s, the API %s", got, want)
		})
		require.Equal(t, 2, eval[int](b, `new Set([...document.querySelectorAll("#plot path.line")].map((l) => l.dataset.line)).size`), "lines over %s", c.length)
		b.clean(s.query.URL())
	}
}

// Each step of each range is answered, with the period before and without. A day is one, too: as an address
// can ask for it.
func chooseSteps(t *testing.T, s *system) {
	const note = `document.getElementById("chart-note").textContent`
	chart := func(b *tab, question string) {
		b.must(chromedp.Do(b.ctx, chromedp.Navigate(s.query.URL()+"/?key=blog&"+question)))
		b.until("a chart of "+question, `(document.getElementById("plot").dataset.step && document.querySelector("#plot .drawing")) || /is not|allowed/.test(`+note+`)`)
		if problem := eval[string](b, note); strings.Contains(problem, "is not") || strings.Contains(problem, "allowed") {
			t.Errorf("%s: %s", question, problem)
		}
	}
	shown := 0
	b := open(t, s.query.URL()+"/?key=blog", desktop)
	b.until("the ranges", `document.querySelector("#range input")`)
	for _, length := range eval[[]string](b, `[...document.querySelectorAll("#range input")].map((input) => input.value)`) {
		if length == "custom" {
			length += "&from=" + time.Now().Add(-5*24*time.Hour).UTC().Format("2006-01-02T15:04:05Z")
		}
		for _, compare := range []string{"1", "0"}[:stack.Rounds(1, 2)] {
			question := "compare=" + compare + "&range=" + length
			chart(b, question)
			for _, step := range eval[[]string](b, `[...new Set(["1d", ...[...document.querySelectorAll("#step option")].map((option) => option.value)])]`) {
				chart(b, question+"&step="+step)
				shown++
			}
		}
	}
	b.clean(s.query.URL())
	if shown < stack.Rounds(20, 40) {
		t.Errorf("only %d charts were seen", shown)
	}
}

// The page's days are the reader's, and hits from before counting began are shown, and shaded.
func TestDaysAreTheReadersOwn(t *testing.T) {
	s := start(t)
	midnight := time.Now().In(time.FixedZone("", 5*3600+1800)).Truncate(time.Second)
	midnight = midnight.AddDate(0, 0, -10).Add(-time.Duration(midnight.Hour())*time.Hour - time.Duration(midnight.Minute())*time.Minute - time.Duration(midnight.Second())*time.Second)
	for back, n := range map[time.Duration]int64{-2 * time.Hour: 10, 2 * time.Hour: 300} {
		s.publishAll(some{"a", n, midnight.Add(back).UnixMilli()})
	}
	stack.EventuallyTotal(t, s.query.URL(), "a", "30d", 310)
	b := open(t, s.query.URL()+"/", desktop)
	_, err := chromedp.Call(b.ctx, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: "Asia/Kolkata"})
	b.must(err)
	b.must(chromedp.Do(b.ctx, chromedp.Navigate(s.query.URL()+"/?key=a&range=30d&step=1d")))
	b.until("the days since the first hit", `document.getElementById("plot").dataset.points === "12"`)
	b.until("the shade", `document.querySelector("#plot .uncounted") && /hits may be missing/.test(document.getElementById("plot").textContent)`)
	b.until("what the shade means", `/Counting began at .*Earlier points have only hits that carried their own time\./.test(document.getElementById("chart-note").textContent)`)
	eval[bool](b, `(document.getElementById("plot").focus(), true)`)
	b.press(kb.Home)
	day := midnight.Add(-24 * time.Hour)
	b.until("the day before", fmt.Sprintf(`document.getElementById("plot").getAttribute("aria-valuetext") === "%s: a 10"`, day.Format("Mon, Jan 2, 15:04")))
	b.press(kb.ArrowRight)
	b.until("the day", fmt.Sprintf(`document.getElementById("plot").getAttribute("aria-valuetext") === "%s: a 300"`, midnight.Format("Mon, Jan 2, 15:04")))
	b.clean(s.query.URL())
}

// pointsOf is how many points a series has that goes so far back, and its step.
func pointsOf(t *testing.T, base string, back time.Duration, step string) string {
	t.Helper()
	status, body, err := stack.Do(http.MethodGet, fmt.Sprintf("%s/v1/series?key=a&step=%s&from=%d", base, step, time.Now().Add(-back).UnixMilli()), nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusOK, status)
	var answer struct {
		Step   string
		Points [][2]int64
	}
	require.NoError(t, json.Unmarshal(body, &answer))
	return fmt.Sprintf("%d of %s", len(answer.Points), answer.Step)
}

// The names of counters leave the direction of all other texts alone, wherever they stand: in rows, tips, the
// chart's reading, the search, the title and attributes that are read out.
func TestNamesTurnNothing(t *testing.T) {
	s := start(t)
	const turned, hebrew = "pay\u202elap\u2066.exe", "שלום.עולם"
	for _, name := range []string{turned, hebrew} {
		s.publishAll(some{Key: name, N: 1})
		stack.EventuallyTotal(t, s.query.URL(), name, "1h", 1)
	}
	b := open(t, s.query.URL()+"/?"+url.Values{"key": {turned, hebrew}}.Encode(), desktop)
	b.until("the totals", `document.querySelectorAll("#rows tr .sparkline").length >= 2 && document.querySelector("#legend li")`)
	eval[bool](b, `(document.getElementById("plot").dispatchEvent(new PointerEvent("pointermove", { clientX: 400 })), true)`)
	b.until("the reading", `!document.getElementById("reading").hidden`)
	b.point(`#rows tr .total`)
	b.until("the tip", `!document.getElementById("tip").hidden`)
	const told = `[...document.querySelectorAll("title, body, body *")].flatMap((node) => [
		...[...node.childNodes].filter((child) => child.nodeType === 3).map((child) => child.data),
		...["title", "aria-label", "aria-valuetext"].map((name) => node.getAttribute(name) ?? "")])`
	if bad := eval[[]string](b, told+`.filter((text) => /\p{Bidi_Control}/u.test(text.replace(/\u2068[^\u2068\u2069]*\u2069/gu, "")) || /[\u202e\u2066]/u.test(text))`); len(bad) > 0 {
		t.Errorf("these texts turn: %q", bad)
	}
	if n := eval[int](b, told+`.filter((text) => text.includes("pay\\u202elap\\u2066.exe")).length`); n < 5 {
		t.Errorf("the name is written out in %d places", n)
	}
	if apart := eval[bool](b, `[...document.querySelectorAll("bdi")].length >= 5 && [...document.querySelectorAll("bdi")].every((node) => getComputedStyle(node).unicodeBidi === "isolate")`); !apart {
		t.Error("names are not apart from what is beside them")
	}
	require.Equal(t, turned, eval[string](b, `[...document.querySelectorAll("#rows tr")].map((row) => row.dataset.key).sort()[0]`), "what the page asks for")
	b.clean(s.query.URL())
}
