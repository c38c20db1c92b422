package page_test

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// apiTotal is what the API answers about a counter or a prefix.
func (s *system) apiTotal(params string) int64 {
	s.t.Helper()
	values, err := url.ParseQuery(params)
	require.NoError(s.t, err)
	answer, err := stack.FetchTotals(s.query.URL(), values)
	require.NoError(s.t, err)
	require.Len(s.t, answer.Totals, 1)
	return answer.Totals[0].Total
}

// The page of a shop whose hits do not change meanwhile.
func TestPageShowsTheHitsOfAShop(t *testing.T) {
	s := start(t)
	s.publishShop()
	s.sideBySide(map[string]func(*testing.T, *system){
		"tree": climbTree, "figures": chooseFigures, "back": goBack, "touch": touchPhone, "requests": countRequests, "steps": chooseSteps, "without NATS": leaveOutNATS,
	})
}

// publishShop is some hits of two days, under names with parts. The day before each counter had as many as
// change says.
func (s *system) publishShop() {
	s.t.Helper()
	s.publishOldHits()
	var all []some
	for key, n := range map[string][2]int64{
		"shop.cart.eu": {4000, 1000}, "shop.cart.us": {300, 300}, "shop.checkout.eu": {50, 5000}, "blog": {2000, 0}, "/a/b/c": {70, 60},
	} {
		all = append(all, ago(key, n[0], 2*time.Hour), ago(key, n[1]+1, 30*time.Hour))
	}
	s.publishAll(all...)
	stack.EventuallyTotal(s.t, s.query.URL(), "shop.cart.eu", "24h", 4000)
	stack.EventuallyTotal(s.t, s.query.URL(), "blog", "24h", 2000)
}

// Rows are the parts of names, with the sums that the API gives, their change and a drawing. A click on a row
// puts it into the chart, a click on its triangle shows what it is made of.
func climbTree(t *testing.T, s *system) {
	b := open(t, s.query.URL()+"/", desktop)
	b.until("the first level, and the sum of all hits in the chart", listed+` === "shop,blog,/a/b/c" && `+on+` === "" && document.getElementById("sum-name").textContent === "All hits"`)
	b.until("the sum", `document.querySelector('#rows tr[data-prefix="shop."] .value').textContent === "4,350"`)
	require.EqualValues(t, 4350, s.apiTotal("prefix=shop.&window=24h"), "what the API answers")
	b.until("a drawing of each", `document.querySelectorAll("#rows .sparkline .steps[d]:not([d=''])").length >= 3`)
	b.until("changes", `[...document.querySelectorAll("#rows .change")].map((c) => c.textContent + c.dataset.kind).join().replaceAll("\u202f", "") === "−31%down,× 2,000up,+15%none"`)
	b.click(`#rows tr[data-prefix="shop."] .caret`)
	b.until("what it is made of", listed+` === "shop,cart,checkout.eu,blog,/a/b/c"`)
	b.click(`#rows tr[data-prefix="shop.cart."] .caret`)
	b.until("and this", listed+` === "shop,cart,eu,us,checkout.eu,blog,/a/b/c"`)
	b.until("a drawing of each of them", `[...document.querySelectorAll("#rows tr")].every((row) => row.querySelector(".sparkline"))`)
	b.click(`#rows tr[data-key="shop.cart.us"] .total`) // anywhere in the row
	b.until("the row in the chart", `location.search === "?key=shop.cart.us"`)
	for column, want := range map[string][2]string{
		"name":   {"/a/b/c,blog,shop,cart,eu,us,checkout.eu", "shop,checkout.eu,cart,us,eu,blog,/a/b/c"},
		"change": {"blog,/a/b/c,shop,cart,eu,us,checkout.eu", "shop,checkout.eu,cart,us,eu,/a/b/c,blog"},
	} {
		b.click(`.sort[data-sort="` + column + `"]`)
		b.until("the order by "+column, listed+` === "`+want[0]+`" && document.querySelectorAll("[aria-sort]").length === 1`)
		b.click(`.sort[data-sort="` + column + `"]`)
		b.until("the other way round", listed+` === "`+want[1]+`"`)
	}
	b.click(`.sort[data-sort="total"]`)
	b.click(`#shape input[value="flat"]`)
	b.until("the list", listed+` === "shop.cart.eu,blog,shop.cart.us,/a/b/c,shop.checkout.eu" && /list=flat/.test(location.search)`)
	b.click("#compare")
	b.until("no change", `getComputedStyle(document.querySelector("#rows .rate")).display === "none" && /compare=0/.test(location.search)`)
	b.clean(s.query.URL())
}

// Back undoes each choice of the reader's, one by one, and Forward does it again.
func goBack(t *testing.T, s *system) {
	b := open(t, s.query.URL()+"/?key=blog", desktop)
	b.until("the counter", on+` === "blog"`)
	b.click(`#range input[value="7d"]`)
	b.until("a week", hits("blog")+` === "2,001"`)
	b.click(`#rows tr[data-key="/a/b/c"]`)
	b.until("two lines", on+` === "blog,/a/b/c" && document.title === "blog, /a/b/c · Tallyroll"`)
	eval[bool](b, `(history.back(), true)`)
	b.until("one line", on+` === "blog" && location.search === "?key=blog&range=7d" && document.title === "blog · Tallyroll"`)
	eval[bool](b, `(history.back(), true)`)
	b.until("a day", hits("blog")+` === "2,000" && document.querySelector("#range input:checked").value === "24h"`)
	eval[bool](b, `(history.go(2), true)`)
	b.until("both again", on+` === "blog,/a/b/c" && document.querySelector("#range input:checked").value === "7d"`)
	b.clean(s.query.URL())
}

// Days and months are those of the reader's own zone, and say what the API says of them.
func TestRangesOfTheCalendar(t *testing.T) {
	s := start(t)
	s.publishOldHits()
	zone, err := time.LoadLocation("Pacific/Kiritimati") // 14 hours ahead, so that days differ from those of UTC
	require.NoError(t, err)
	for i := range 40 {
		s.publishAll(ago("a", 1<<i, time.Duration(i)*6*time.Hour+30*time.Second)) // so a total says which hits it has
	}
	stack.EventuallyTotal(t, s.query.URL(), "a", "30d", 1<<40-1)
	b := open(t, s.query.URL()+"/", desktop)
	_, err = chromedp.Call(b.ctx, emulation.SetTimezoneOverride, emulation.SetTimezoneOverrideParams{TimezoneID: zone.String()})
	b.must(err)
	b.must(chromedp.Do(b.ctx, chromedp.Navigate(s.query.URL()+"/?key=a")))
	whole := `document.getElementById("tip").textContent.match(/Exactly ([0-9,]+)\./)?.[1].replaceAll(",", "")`
	for _, window := range []string{"today", "yesterday", "month"} {
		b.click(`#range input[value="` + window + `"]`)
		want := fmt.Sprint(s.apiTotal("key=a&window=" + window + "&tz=" + zone.String()))
		stack.Eventually(t, window, func() (bool, string) {
			b.point(`#rows tr[data-key="a"] .total`)
			got := eval[string](b, whole+` ?? document.getElementById("tip").textContent`)
			return got == want, fmt.Sprintf("%s, want %s", got, want)
		})
		if got := eval[string](b, `document.querySelector("#explore-when").textContent`); got == "" {
			t.Errorf("%s is not named", window)
		}
	}
	// A range of one's own begins as the one before it was, and both its ends can be written.
	b.click(`#range input[value="custom"]`)
	b.until("its fields", `!document.getElementById("own").hidden && document.getElementById("own-from").value.endsWith("-01T00:00")`)
	from, to := time.Now().In(zone).Add(-30*time.Hour).Truncate(time.Hour), time.Now().In(zone).Add(-10*time.Hour).Truncate(time.Hour)
	for id, at := range map[string]time.Time{"own-from": from, "own-to": to} {
		eval[bool](b, fmt.Sprintf(`(document.getElementById(%[1]q).value = %[2]q, document.getElementById(%[1]q).dispatchEvent(new Event("change")), true)`, id, at.Format("2006-01-02T15:04")))
	}
	want := fmt.Sprint(s.apiTotal("key=a&" + url.Values{"from": {from.Format(time.RFC3339)}, "to": {to.Format(time.RFC3339)}}.Encode()))
	stack.Eventually(t, "the range", func() (bool, string) {
		b.point(`#rows tr[data-key="a"] .total`)
		got := eval[string](b, whole+` ?? document.getElementById("tip").textContent`)
		return got == want, fmt.Sprintf("%s, want %s", got, want)
	})
	eval[bool](b, `(document.getElementById("own-to").value = document.getElementById("own-from").value, document.getElementById("own-to").dispatchEvent(new Event("change")), true)`)
	b.until("what is wrong", `document.getElementById("own-why").textContent === "It ends before it begins."`)
	b.clean(s.query.URL())
}

// More counters than can be a tree are a list of the largest, 50 at a time; search finds all others, and a
// change is sought among the largest.
func TestManyCounters(t *testing.T) {
	s := start(t)
	s.publishOldHits()
	for chunk := range 12 {
		var all []some
		for i := range 100 {
			n := int64(chunk*100 + i)
			all = append(all, ago(fmt.Sprintf("page.%d.n%04d", n%7, n), 10+n, time.Hour), ago(fmt.Sprintf("page.%d.n%04d", n%7, n), 10+n+(n%3-1)*5, 30*time.Hour))
		}
		s.publishAll(all...)
	}
	stack.EventuallyTotal(t, s.query.URL(), "page.2.n1199", "24h", 1209)
	b := open(t, s.query.URL()+"/?range=24h", desktop)
	rows := `document.querySelectorAll("#rows tr").length`
	b.until("the sum of all of them", `document.querySelector("#sum-hits b").textContent === "731\u202fK" && document.querySelector("#sum-hits .note").textContent === "exact" && document.getElementById("sum-hits").title === "Exactly 731,400." && document.getElementById("sum-change").textContent === "same" && document.querySelector("#sum-rate b").textContent === "0" && document.querySelector("#sum-peak b").textContent === "731\u202fK"`)
	b.until("ten of them", rows+` === 10 && document.querySelector("#rows tr").dataset.key === "page.2.n1199" && /More counters than can be a tree/.test(document.getElementById("list-note").textContent) && document.getElementById("shape").hidden`)
	b.click("#more")
	b.until("forty more", rows+` === 50`)
	b.until("their changes", `[...document.querySelectorAll("#rows .change")].every((c) => c.textContent !== "–")`)
	b.click(`.sort[data-sort="change"]`)
	b.until("the largest change", `/^\+/.test(document.querySelector("#rows tr:not([data-pinned]) .change").textContent) && /among the 200 largest/.test(document.getElementById("list-note").textContent)`)
	b.click("#search")
	b.press("N", "0", "0", "0", "7")
	b.until("a small one", listed+` === "page.0.n0007" && `+hits("page.0.n0007")+` === "17"`)
	b.click(`#rows tr[data-key="page.0.n0007"]`)
	b.until("it in the chart", `/key=page.0.n0007/.test(location.search)`)
	eval[bool](b, `(document.getElementById("search").value = "", document.getElementById("search").dispatchEvent(new Event("input")), true)`)
	b.until("it above the others, with its total", `document.querySelector('#rows tr[data-pinned][data-key="page.0.n0007"] .value')?.textContent === "17"`)
	b.click(`.sort[data-sort="name"]`)
	b.until("the first names", `document.querySelector("#rows tr:not([data-pinned])").dataset.key === "page.0.n0000"`)
	b.clean(s.query.URL())
}

// Hits of names without room are on counters that are no name of the reader's. These are grey, and words say
// whose hits they have. No total that may lack some is called exact.
func TestNamesWithoutRoom(t *testing.T) {
	s := startIngest(t, []string{"INGEST_MAX_NAMES=web.=1000"})
	s.publishOldHits()
	s.publishAll(some{"shop", 500, 0}, some{"web./home", 300, 0})
	stack.EventuallyTotal(t, s.query.URL(), "web./home", "1h", 300)
	for chunk := range 20 {
		var all []some
		for i := range 100 {
			all = append(all, some{fmt.Sprintf("web./%d", chunk*100+i), 1, 0})
		}
		s.publishAll(all...)
	}
	s.publishAll(some{"last", 400, 0})
	stack.EventuallyTotal(t, s.query.URL(), "last", "1h", 400)
	require.Positive(t, s.apiTotal("prefix=web.~other.&window=1h"))
	row := func(key string) string { return fmt.Sprintf(`document.querySelector('#rows tr[data-key^=%q]')`, key) }
	color := func(node string) string { return "getComputedStyle(" + node + ").color" }
	other, words := row("web.~other."), "Some names under web. have no room: their hits are counted together "
	for _, as := range []looks{phone, {1440, 900, "dark"}, {390, 844, "dark"}, {1440, 900, "light"}}[:stack.Rounds(2, 4)] {
		b := open(t, s.query.URL()+"/?range=1h", as)
		b.until("the counters", other+` && `+hits("shop")+` === "500"`)
		grey := eval[string](b, color(`document.getElementById("list-note")`))
		for _, part := range []string{"bdi", ".value"} {
			require.Equal(t, grey, eval[string](b, color(other+`.querySelector("`+part+`")`)), "%+v: %s of an overflow counter", as, part)
			require.NotEqual(t, grey, eval[string](b, color(row("shop")+`.querySelector("`+part+`")`)), "%+v: %s of a name", as, part)
		}
		require.Regexp(t, `^web\.~other\.\d+: hits of names without room$`, eval[string](b, other+`.querySelector("bdi").title`))
		require.Equal(t, "shop", eval[string](b, row("shop")+`.querySelector("bdi").title`))
		note := eval[string](b, `document.getElementById("list-note").textContent`)
		require.True(t, strings.HasPrefix(note, words+"(INGEST_MAX_NAMES, INGEST_NAMES_MEMORY). So there is no tree"), note)
		require.Equal(t, "names without room", eval[string](b, `document.getElementById("hits-note").textContent`))
		b.requireLegible(as)
		for key, sentences := range map[string]string{"shop": "Exactly 500.", "web./home": "300, between 300 and [0-9]+." + words} {
			b.point(fmt.Sprintf("#rows tr[data-key=%q] .total", key))
			b.until("the tip of "+key, fmt.Sprintf("new RegExp(%q).test(document.getElementById('tip').textContent)", "^"+key+sentences))
		}
		b.clean(s.query.URL())
	}
	b := open(t, s.query.URL()+"/?range=1h&key=web./home", desktop)
	b.until("what the counter itself lacks", `/^± [0-9]+.%, names without room$/.test(document.querySelector("#sum-hits .note").textContent) && document.getElementById("sum-hits").title.includes(`+fmt.Sprintf("%q", words)+`)`)
	b.until("it in the counter's panel", `document.querySelector("#counter-facts div").title.includes(`+fmt.Sprintf("%q", words)+`)`)
	b.clean(s.query.URL())
}

// The figures are of the only line of the chart, else of all hits, and each chooses what the chart shows. A
// prefix with a * is a sum. A table of the counters is saved as CSV.
func chooseFigures(t *testing.T, s *system) {
	b := open(t, s.query.URL()+"/?range=24h", desktop)
	const name, title = `document.getElementById("sum-name").textContent`, `document.getElementById("chart-title").textContent`
	b.until("all hits", name+` === "All hits" && document.querySelector("#sum-hits b").textContent === "6,420" && document.getElementById("sum-all").hidden && location.search === "?range=24h"`)
	b.click("#sum-rate")
	b.until("each second", title+` === "Hits per second, just now" && document.getElementById("plot").dataset.step === "1s" && document.getElementById("sum-rate").ariaPressed === "true" && /of=rate/.test(location.search)`)
	b.click("#sum-hits")
	b.until("the hits", title+` === "Hits over time" && document.getElementById("plot").dataset.step === "30m" && !/of=/.test(location.search)`)
	b.click("#sum-peak")
	b.until("a reading of the peak", `/ 6,420/.test(document.getElementById("plot").getAttribute("aria-valuetext")) && !document.getElementById("reading").hidden`)
	b.click("#search")
	b.press("s", "h", "o", "p", ".", "*", "\r")
	b.until("the sum of shop.*", name+` === "shop.*" && document.querySelector("#sum-hits b").textContent === "4,350" && location.search === "?prefix=shop.&find=shop.*"`)
	b.until("its change", `document.getElementById("sum-change").textContent === "−31\u202f%" && document.getElementById("sum-change").dataset.kind === "down"`)
	b.click("#sum-all")
	b.until("all hits again", name+` === "All hits" && document.querySelector("#sum-hits b").textContent === "6,420" && !/prefix/.test(location.search)`)
	b.clean(s.query.URL())
}

// A reader who cannot have the sum of all hits sees that of the counters in the table, and why.
func TestReadersWithoutTheSum(t *testing.T) {
	s := start(t)
	s.hit("a", "a", "b")
	stack.EventuallyTotal(t, s.query.URL(), "b", "1h", 1)
	r := s.retell(t, even)
	r.noSum = true
	b := open(t, r.URL+"/?range=1h", desktop)
	b.until("the sum of what is listed, and why", `document.querySelector("#sum-hits b").textContent === "3" && document.getElementById("sum-why").textContent === "The token allows counters of shop. only."`)
	b.until("the largest in the chart", on+` === "a,b"`)
	b.clean(r.URL, failedRequests...)
}

// Of groups of more counters than the service adds up, the largest are drawn, and words say what the others
// have.
func TestGroupsThatAreNotAddedUp(t *testing.T) {
	s := start(t, "QUERY_MAX_SUM=1")
	var names []string
	for i := range 12 {
		names = append(names, fmt.Sprintf("a.%02d", i))
	}
	s.hit(append(names, "a.00")...)
	stack.EventuallyTotal(t, s.query.URL(), "a.11", "1h", 1)
	stack.EventuallyTotal(t, s.query.URL(), "a.00", "1h", 2)
	b := open(t, s.query.URL()+"/?range=1h", desktop)
	note := `document.getElementById("list-note").textContent`
	b.until("what is drawn", note+`.includes("The 10 largest of a.* are drawn. All others: at most ") && document.querySelector('#rows tr[data-prefix="a."] .sparkline') !== null && document.querySelector("#sum-hits b").textContent === "13"`)
	b.click(`#rows tr[data-prefix="a."]`)
	b.until("the largest in the chart", `document.getElementById("chart-note").textContent.includes("The 10 largest of a.* are drawn. All others: at most ") && `+plotted)
	require.NotContains(t, eval[string](b, `document.body.innerText`), "QUERY_MAX_SUM", "the text of an error")
	b.clean(s.query.URL(), failedRequests...)
}

// A search without a counter says so, and Enter shows it all the same, as one that may come. Seven lines are
// the most.
func TestLinesOfTheChart(t *testing.T) {
	s := start(t)
	s.hit("a", "b", "c", "d", "e", "f", "g", "h")
	stack.EventuallyTotal(t, s.query.URL(), "h", "1h", 1)
	b := open(t, s.query.URL()+"/?key=a&range=1h", desktop)
	b.until("all of them", `document.querySelectorAll("#rows tr").length === 8`)
	b.until("the chart, above the table", plotted)
	b.click("#search")
	b.press("z", "z")
	b.until("no counter", `/No counter’s name has “zz” in it/.test(document.getElementById("list-note").textContent)`)
	b.press("\r")
	b.until("it in the address", `/key=a&key=zz/.test(location.search)`)
	eval[bool](b, `(document.getElementById("search").value = "", document.getElementById("search").dispatchEvent(new Event("input")), true)`)
	b.until("it in the table", hits("zz")+` === "0"`)
	for _, key := range []string{"b", "c", "d", "e", "f"} {
		b.click(`#rows tr[data-key="` + key + `"]`)
	}
	b.until("seven lines, which is said", on+`.split(",").length === 7 && /The chart shows 7 lines/.test(document.getElementById("list-note").textContent)`)
	b.click(`#rows tr[data-key="g"]`)
	b.until("that to be told", `document.getElementById("list-note").classList.contains("told") && /The chart shows 7 lines/.test(document.getElementById("said").textContent)`)
	if got := eval[string](b, on); strings.Contains(got, "g") {
		t.Errorf("the chart has %s", got)
	}
	b.clean(s.query.URL())
}

// Nothing is wider than the screen, nothing hides anything else, and all is read with ease, whatever the
// names and totals. On a phone there is one column at a time.
func TestNothingCollides(t *testing.T) {
	s := start(t)
	s.publishOldHits()
	long, parts := strings.Repeat("x", 512), strings.Repeat("a-long-part.", 42)+"end"
	s.publishAll(some{long, 12, 0}, ago(long, 30, 20*time.Hour), some{parts, 7, 0}, ago("big", 1<<40, time.Hour), ago("big", 1<<40, 2*time.Hour), ago("big", 1<<40, 23*time.Hour+58*time.Minute), some{"b.c", 1, 0}, some{"b.d", 12345, 0})
	s.publishAll(ago("edge", 1<<39, 24*time.Hour), ago("edge", 3, time.Hour))
	s.publish("hits.c", `{"kay":`+strings.Repeat("9", 400))
	stack.EventuallyTotal(t, s.query.URL(), "b.d", "1h", 12345)
	background := map[string]string{}
	for _, as := range []looks{phone, {320, 640, "dark"}, {768, 900, "dark"}, {1440, 900, "light"}, {390, 844, "dark"}, {320, 640, "light"}, {1024, 900, "light"}, {1440, 900, "dark"}, {1920, 1000, "light"}}[:stack.Rounds(4, 9)] {
		b := open(t, s.query.URL()+"/?range=24h&key=big&key="+long, as)
		b.until("the table", hits("big")+` && document.querySelector("#rows .change").textContent !== "" && document.querySelector("#rows .sparkline")`)
		b.until("the chart", plotted)
		b.click(`#rows tr[data-prefix="b."] .caret`)
		columns := []string{""}
		if as.width <= 760 {
			columns = []string{"rate", "trend", "total"}
		}
		for _, column := range columns {
			if column != "" {
				b.click(`#column input[value="` + column + `"]`)
				if got := eval[int](b, `document.querySelectorAll("#rows-table thead th").values().filter((th) => th.checkVisibility()).toArray().length`); got != 2 {
					t.Errorf("%+v: %d columns at once", as, got)
				}
			}
			b.requireLegible(as)
		}
		b.point(`#rows tr[data-key="big"] .total`)
		b.until("the tip", `!document.getElementById("tip").hidden`)
		b.requireLegible(as)
		b.choose("custom")
		b.until("the fields", `!document.getElementById("own").hidden`)
		b.requireLegible(as)
		background[as.scheme] = eval[string](b, `getComputedStyle(document.body).backgroundColor`)
		b.clean(s.query.URL())
	}
	if background["light"] != "rgb(245, 246, 248)" || background["dark"] != "rgb(12, 15, 19)" {
		t.Errorf("backgrounds %v", background)
	}
}

// requireLegible fails the test if the page is wider than the screen, if texts of the table or of the range
// lie over each other or are cut without a sign of it, or if a text has too little contrast (WCAG 2.2,
// 1.4.3).
func (b *tab) requireLegible(as looks) {
	b.t.Helper()
	b.requireNarrow(as)
	for _, bad := range eval[[]string](b, collisions) {
		b.t.Errorf("%+v: %s", as, bad)
	}
}

// requireNarrow fails the test if the page is wider than the screen.
func (b *tab) requireNarrow(as looks) {
	b.t.Helper()
	if widths := eval[[]int](b, `[document.documentElement.scrollWidth, innerWidth]`); widths[0] > widths[1] {
		b.t.Errorf("%+v: the page is %d wide", as, widths[0])
	}
}

// collisions lists what is wrong with the texts that are seen. A text is as wide as its box where it is cut
// with an ellipsis.
const collisions = `(() => {
	const out = [], shown = (node) => node.checkVisibility({ visibilityProperty: true, opacityProperty: true }) && !node.closest(".hidden, [aria-hidden=true], svg");
	const own = (node) => [...node.childNodes].filter((c) => c.nodeType === 3).map((c) => c.data.trim()).join("");
	const boxOf = (node) => {
		const range = document.createRange();
		range.selectNodeContents(node);
		const text = range.getBoundingClientRect(), box = node.getBoundingClientRect(), cut = getComputedStyle(node).overflowX !== "visible";
		return { left: text.left, top: text.top, bottom: text.bottom, right: cut ? Math.min(text.right, box.right) : text.right };
	};
	const texts = [...document.querySelectorAll("#explore *, #span *")].filter((node) => own(node) && shown(node) && !node.closest("#tip")).map((node) => ({ node, text: own(node).slice(0, 30), ...boxOf(node) }));
	for (const [i, a] of texts.entries()) {
		if (a.right > innerWidth + 1 || a.left < 0) out.push(a.text + " leaves the screen");
		for (const b of texts.slice(i + 1)) {
			if (a.node.contains(b.node) || b.node.contains(a.node)) continue;
			if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3) out.push(a.text + " and " + b.text + " lie over each other");
		}
	}
	for (const cell of document.querySelectorAll("#rows :is(th, td)")) {
		if (!shown(cell)) continue;
		const row = cell.parentElement.getBoundingClientRect(), box = cell.getBoundingClientRect();
		if (box.top < row.top - 1 || box.bottom > row.bottom + 1) out.push(cell.className + " of " + own(cell.parentElement) + " leaves its row");
	}
	const parse = (text) => { const m = text.match(/[\d.]+/g).map(Number); return { rgb: m.slice(0, 3), alpha: m[3] ?? 1 }; };
	const light = (rgb) => rgb.map((c) => c / 255).map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)).reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
	const ground = (node) => { for (; node; node = node.parentElement) { const c = parse(getComputedStyle(node).backgroundColor); if (c.alpha === 1) return c.rgb; } return [255, 255, 255]; };
	for (const node of document.querySelectorAll("header *, main *")) {
		if (!own(node) || !shown(node) || node.closest(":disabled")) continue;
		const style = getComputedStyle(node), a = light(parse(style.color).rgb), b = light(ground(node));
		const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), large = parseFloat(style.fontSize) >= 24 || (parseFloat(style.fontSize) >= 18.66 && style.fontWeight >= 700);
		if (ratio < (large ? 3 : 4.5)) out.push(own(node).slice(0, 40) + " has a contrast of " + ratio.toFixed(2));
	}
	return out;
})()`

// A click on a phone's screen does what a click does, and its column shows what one chooses.
func touchPhone(t *testing.T, s *system) {
	b := open(t, s.query.URL()+"/?key=blog", phone)
	b.until("the totals", hits("blog")+` === "2,000"`)
	b.until("the chart, above the table", plotted)
	x, y := b.point(`#rows tr[data-prefix="shop."] .caret`)
	for _, kind := range []input.DispatchTouchEventType{input.DispatchTouchEventTypeTouchStart, input.DispatchTouchEventTypeTouchEnd} {
		points := []*input.TouchPoint{{X: x, Y: y}}
		if kind == input.DispatchTouchEventTypeTouchEnd {
			points = nil
		}
		_, err := chromedp.Call(b.ctx, input.DispatchTouchEvent, input.DispatchTouchEventParams{Type: kind, TouchPoints: points})
		b.must(err)
	}
	b.until("what it is made of", listed+` === "shop,cart,checkout.eu,blog,/a/b/c"`)
	b.click(`#column input[value="rate"]`)
	b.until("the change alone", `document.querySelector('#rows tr[data-key="blog"] .change').checkVisibility() && !document.querySelector('#rows tr[data-key="blog"] .value').checkVisibility()`)
	b.clean(s.query.URL())
}

// An open page asks for the list every few seconds, and seldom for anything else: drawings and the period
// before are kept.
func countRequests(t *testing.T, s *system) {
	b := open(t, s.query.URL()+"/?key=blog&range=24h", desktop)
	stack.Eventually(t, "some rounds", func() (bool, string) {
		return b.asks("/v1/top?window=24h") >= 4, fmt.Sprint(b.asks("/v1/top?window=24h"))
	})
	require.LessOrEqual(t, b.asks("/v1/top?window=24h&at="), 1, "how often the period before was asked for")
	require.LessOrEqual(t, b.asks("group="), 1, "how often drawings of groups were asked for")
	require.Equal(t, 1, b.asks("/v1/live"), "live connections")
	require.Zero(t, b.asks("/v1/counters"), "how often names were asked for")
	eval[bool](b, `(Object.defineProperty(document, "hidden", { value: true }), document.dispatchEvent(new Event("visibilitychange")), true)`)
	b.clean(s.query.URL())
}
