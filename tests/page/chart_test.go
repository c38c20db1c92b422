package page_test

import (
	"fmt"
	"math"
	"net/url"
	"regexp"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// mouse moves the pointer, or presses or releases it, at a part of the width of what a selector finds.
func (b *tab) mouse(kind input.DispatchMouseEventType, selector string, part float64, clicks int) {
	b.t.Helper()
	at := eval[[]float64](b, fmt.Sprintf(`(() => { const node = document.querySelector(%q), inside = (r) => r.top >= 0 && r.bottom <= innerHeight;
		if (!inside(node.getBoundingClientRect())) node.scrollIntoView({ block: "center" });
		const r = node.getBoundingClientRect(); return [r.left, r.top, r.width, r.height]; })()`, selector))
	params := input.DispatchMouseEventParams{Type: kind, X: at[0] + part*at[2], Y: at[1] + at[3]/2}
	if clicks > 0 {
		params.Button, params.ClickCount = "left", int64(clicks)
	}
	if kind == input.DispatchMouseEventTypeMouseMoved && clicks > 0 {
		params.Buttons, params.ClickCount = 1, 0
	}
	_, err := chromedp.Call(b.ctx, input.DispatchMouseEvent, params)
	b.must(err)
}

// draw has the chart answer a question that the page has not asked.
func (b *tab) draw(question string) {
	b.t.Helper()
	eval[bool](b, fmt.Sprintf(`(import(document.querySelector("link[href$='/chart.js']").href).then((chart) => chart.draw({
		from: null, to: null, zone: "", before: false, %s })), true)`, question))
}

// readRange waits until the chart shows so much time, and returns its ends in Unix milliseconds.
func (b *tab) readRange(least, most time.Duration) (from, to int64) {
	b.t.Helper()
	const ends = `((d) => [Number(d.from), Number(d.to)])(document.getElementById("plot").dataset)`
	b.until(fmt.Sprintf("%s to %s", least, most), fmt.Sprintf(`(([from, to]) => to - from >= %d && to - from <= %d)(%s)`,
		least.Milliseconds(), most.Milliseconds(), ends))
	got := eval[[]int64](b, ends)
	return got[0], got[1]
}

const (
	plotted  = `document.querySelector("#plot path.line, #plot path.bars")`
	pressed  = input.DispatchMouseEventTypeMousePressed
	released = input.DispatchMouseEventTypeMouseReleased
	moved    = input.DispatchMouseEventTypeMouseMoved
)

// even is as many hits in every step as its minutes, and a hundred times that of a counter called large.
func even(key string, _ time.Time, step time.Duration) int64 {
	n := int64(math.Ceil(step.Minutes()))
	if key == "large" {
		n *= 100
	}
	return n
}

// uneven hits of a counter called a are many in every other step.
func uneven(key string, at time.Time, step time.Duration) int64 {
	if key == "a" && at.UnixMilli()/step.Milliseconds()%2 == 0 {
		return 70
	}
	return 40
}

const longName = "a-very-long-name.of-a-counter.that-goes-on.and-on.and-on-for-ever"

// The chart of series that are made up: their shapes, what is read of them and what is done with them.
func TestChartDrawsSeries(t *testing.T) {
	s := start(t)
	s.hit("a", "b", "large", "small", longName)
	s.sideBySide(map[string]func(*testing.T, *system){
		"steps": seeSteps, "chance": seeChance, "zoom": zoom, "unequal lines": seeUnequalLines, "the period before": compare,
		"incomplete times": seeIncompleteTimes, "every screen": fitIntoScreens, "prefixes": seePrefixes,
	})
}

// A count is of a whole step: one line is bars, several are steps, and no line is a slope. What is still
// being counted is hatched, and no line falls to it.
func seeSteps(t *testing.T, s *system) {
	r := s.retell(t, uneven)
	b := open(t, r.URL+"/?key=a&range=1h&compare=0", desktop)
	b.until("bars", plotted)
	shape := eval[[]int](b, `((bars) => [bars.filter((b) => !b.matches(".open")).reduce((n, b) => n + b.getAttribute("d").match(/M/g).length, 0), (bars.at(-1).getAttribute("d").match(/M/g) ?? []).length, bars.length])([...document.querySelectorAll("#plot path.bars")])`)
	if points := eval[int](b, `Number(document.getElementById("plot").dataset.points)`); shape[2] < 2 || shape[0]+shape[1] != points || shape[1] != 1 {
		t.Errorf("%v bars of %d steps", shape, points)
	}
	const hatched = `getComputedStyle(document.querySelector("#plot path.bars.hatched")).fill`
	require.Equal(t, `url("#hatch-0")`, eval[string](b, hatched), "the last bar is filled with")
	b = open(t, r.URL+"/?key=a&key=b&range=1h&compare=0", desktop)
	b.until("two lines", `document.querySelectorAll("#plot path.line").length === 4 && document.querySelector("#plot rect.hatched")`)
	paths := eval[[]string](b, `[...document.querySelectorAll("#plot path.line")].map((path) => path.getAttribute("d").replace(/[\d .]/g, "") + " " + path.classList.contains("open"))`)
	for i, want := range []string{`^M(HV){55,60}H false$`, `^MH true$`, `^MH false$`, `^MH true$`} {
		if !regexp.MustCompile(want).MatchString(paths[i]) {
			t.Errorf("path %d is drawn as %s, want %s", i, paths[i], want)
		}
	}
	b.until("what hatched means", `/Hatched: still being counted\./.test(document.getElementById("chart-note").textContent)`)
	b.clean(r.URL)
}

// A step has an arrow if chance does not explain how far it is from the mean, or from the period before. On
// paper, the chart is as wide as the page.
func seeChance(t *testing.T, s *system) {
	spike := time.Now().Add(-30 * time.Minute)
	r := s.retell(t, func(_ string, at time.Time, step time.Duration) int64 {
		if !at.After(spike) && at.Add(step).After(spike) {
			return 140
		}
		return 100 + at.UnixMilli()/step.Milliseconds()%5
	})
	b := open(t, r.URL+"/?key=a&range=1h&compare=0", desktop)
	const ways = `[...document.querySelectorAll("#plot path.far")].map((arrow) => arrow.dataset.way).join()`
	b.until("an arrow over one step", plotted+` && `+ways+` === "1" && /▲▼: further from the mean than chance explains/.test(document.getElementById("chart-note").textContent)`)
	require.Equal(t, 1, eval[int](b, `document.querySelectorAll("#plot path.bars:not(.open)").length`), "colours of finished bars")
	_, err := chromedp.Call(b.ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Media: "print"})
	b.must(err)
	b.until("only what can be read on paper", `!document.getElementById("views").checkVisibility()`)
	if !eval[bool](b, `((plot) => {
		plot.style.width = "400px"; // as a page of paper, for which nothing is drawn again
		return Math.round(plot.querySelector(".drawing").getBoundingClientRect().width) === 400;
	})(document.getElementById("plot"))`) {
		t.Error("paper cuts the chart")
	}
	b.clean(r.URL)
}

// A drag zooms into whole steps, a double click goes back; so do Enter and Escape.
func zoom(t *testing.T, s *system) {
	r := s.retell(t, uneven)
	b := open(t, r.URL+"/?key=a&key=b&range=24h&step=15m&compare=0", desktop)
	b.until("a chart", plotted)
	b.mouse(moved, "#plot .drawing", 0.4, 0)
	b.until("a reading of both lines", `/^.+, 15 minutes$/.test(document.querySelector("#reading p").textContent) && [...document.querySelectorAll("#reading .value")].map((v) => v.innerText.replace(/\s+/g, " ").trim()).join() .match(/^a [47]0,b 40$/)`)
	b.mouse(pressed, "#plot .drawing", 0.5, 1)
	b.mouse(moved, "#plot .drawing", 0.6, 1)
	b.mouse(moved, "#plot .drawing", 0.75, 1)
	b.until("the selection", `document.querySelector("#plot .selection") && / to /.test(document.getElementById("reading").textContent)`)
	b.mouse(released, "#plot .drawing", 0.75, 1)
	from, to := b.readRange(5*time.Hour, 7*time.Hour) // a quarter of the chart
	if from%900_000 != 0 || to%900_000 != 0 {
		t.Errorf("%d to %d are not whole steps", from, to)
	}
	b.until("the part", fmt.Sprintf(`document.getElementById("plot").dataset.points === "%d" && !document.getElementById("chart-back").hidden`, (to-from)/900_000))
	b.mouse(pressed, "#plot .drawing", 0.3, 1)
	b.mouse(released, "#plot .drawing", 0.3, 1)
	b.mouse(pressed, "#plot .drawing", 0.3, 2)
	b.mouse(released, "#plot .drawing", 0.3, 2)
	b.readRange(24*time.Hour, 25*time.Hour)
	b.until("the way back to be over", `document.getElementById("chart-back").hidden && document.getElementById("plot").dataset.points >= 48`)

	b.mouse(moved, "#main", 0.001, 0)
	eval[bool](b, `(document.querySelector("#chart-menu button").focus(), true)`)
	b.press(kb.Tab) // #plot is what follows
	b.until("the focus", `document.activeElement.id === "plot"`)
	b.press(kb.Home, kb.ArrowRight, kb.ArrowRight, kb.PageDown, kb.PageDown, kb.PageDown, kb.PageDown)
	b.until("the 43rd step", `document.getElementById("plot").getAttribute("aria-valuenow") === "42" && document.querySelectorAll("#plot .cursor circle").length === 2`)
	b.press(kb.Enter)
	b.readRange(5*time.Hour+45*time.Minute, 6*time.Hour+45*time.Minute)
	b.press(kb.Escape)
	b.readRange(24*time.Hour, 25*time.Hour)
	b.clean(r.URL)
}

// A click in the legend isolates a line, a second one shows all. A line that flattens others brings an offer
// of other scales, and each shows the small line.
func seeUnequalLines(t *testing.T, s *system) {
	r := s.retell(t, even)
	b := open(t, r.URL+"/?key=large&key=small&range=24h&compare=0", desktop)
	const (
		shares = `((box) => [...document.querySelectorAll("#plot path.line:not(.open)")].map((line) => Math.round(100 * (box.bottom - 26 - line.getBoundingClientRect().top) / box.height)).join())(document.querySelector("#plot .drawing").getBoundingClientRect())`
		drawn  = `[...new Set([...document.querySelectorAll("#plot path.line, #plot path.bars")].map((line) => line.dataset.line))].join()`
	)
	b.until("the offer", `document.getElementById("chart-hint").innerText.replace(/\s+/g, " ") === "large flattens small. Log scale A chart for each"`)
	if got := eval[bool](b, `((s) => s[1] < 3 && s[0] > 50)(`+shares+`.split(",").map(Number))`); !got {
		t.Errorf("lines stand at %s %% of the height", eval[string](b, shares))
	}
	b.click("#legend li:nth-child(2) button")
	b.until("the small line alone", drawn+` === "1" && document.querySelector("#legend [aria-pressed=true]").textContent === "small" && document.getElementById("chart-hint").hidden`)
	b.click("#legend li:nth-child(2) button")
	b.until("all lines", drawn+` === "0,1" && !document.querySelector("#legend [aria-pressed=true]")`)
	b.click("#chart-hint button")
	b.until("the log scale", `document.querySelector("#scales input:checked").value === "log" && [...document.querySelectorAll("#plot text")].some((text) => text.textContent === "1,000")`)
	if got := eval[bool](b, `((s) => s[1] > 10 && s[0] > 50)(`+shares+`.split(",").map(Number))`); !got {
		t.Errorf("on a log scale, lines stand at %s %% of the height", eval[string](b, shares))
	}
	height := eval[int](b, `document.querySelector("#plot .drawing").clientHeight`)
	b.click(`#scales label:last-of-type`)
	b.until("a panel for each", `[...document.querySelectorAll("#plot text.name")].map((text) => text.textContent).join() === "large,small" && document.querySelectorAll("#plot .area").length === 2`)
	if got := eval[bool](b, fmt.Sprintf(`document.querySelector("#plot .drawing").clientHeight !== %d && document.querySelectorAll("#plot path.hatched").length === 2`, height)); !got {
		t.Error("panels are not drawn one below the other")
	}
	b.mouse(moved, "#plot .drawing", 0.5, 0)
	b.until("a reading of both panels", `((c) => c.length === 2 && c[0].getAttribute("cx") === c[1].getAttribute("cx") && Math.abs(c[0].getAttribute("cy") - c[1].getAttribute("cy")) > 50)(document.querySelectorAll("#plot .cursor circle"))`)
	b.clean(r.URL)
}

// The period before is a faint line at the same steps, and is read with them.
func compare(t *testing.T, s *system) {
	border := time.Now().Add(-25 * time.Hour)
	r := s.retell(t, func(_ string, at time.Time, _ time.Duration) int64 {
		if at.Before(border) {
			return 7
		}
		return 70
	})
	b := open(t, r.URL+"/?key=a&range=24h&step=15m&compare=0", desktop)
	b.until("a chart", plotted)
	b.draw(`lines: [{ name: "a", key: "a" }], window: "24h", step: "15m", before: true`)
	b.until("the line before", `document.querySelector("#plot path.before") && /Dashed: the period before, 24 h earlier\./.test(document.getElementById("chart-note").textContent)`)
	if !eval[bool](b, `document.querySelector("#plot path.before").getBBox().x >= document.querySelector("#plot line.axis").x1.baseVal.value - 1`) {
		t.Error("the line before begins left of the axis")
	}
	require.NotEqual(t, "none", eval[string](b, `getComputedStyle(document.querySelector("#plot path.before")).strokeDasharray`), "the dashes of the line before")
	b.mouse(moved, "#plot .drawing", 0.5, 0)
	b.until("both counts", `document.querySelector("#reading .value").textContent === "a70before 7"`)
	b.point(`#chart-title`) // away from the lines
	b.draw(`lines: [{ name: "a", key: "a" }, { name: "b", key: "b" }], window: "24h", step: "15m", before: true`)
	faint := `[...document.querySelectorAll("#plot path.before")].filter((path) => path.checkVisibility({ visibilityProperty: true })).map((path) => path.dataset.line).join()`
	b.until("no faint line among several", `document.querySelectorAll("#plot path.before").length === 2 && `+faint+` === ""`)
	b.point(`#legend li:nth-child(2) button`)
	b.until("that of the line under the pointer", faint+` === "1"`)
	b.clean(r.URL)
}

// Times of which hits are missing, or not counted yet, are shaded, and show why when a reader points at them.
func seeIncompleteTimes(t *testing.T, s *system) {
	r := s.retell(t, even)
	r.countingSince = time.Now().Add(-12 * time.Hour)
	r.completeFrom = r.countingSince
	b := open(t, r.URL+"/?key=a&key=b&range=24h&compare=0", desktop)
	b.until("the shade", `Math.abs(document.querySelector("#plot .uncounted").getBoundingClientRect().width / document.querySelector("#plot .grid").getBoundingClientRect().width - 0.5) < 0.03`)
	b.mouse(moved, "#plot .drawing", 0.2, 0)
	b.until("why", `/^Counting began at /.test(document.querySelector("#reading .missing")?.textContent)`)
	b.mouse(moved, "#plot .drawing", 0.8, 0)
	b.until("nothing to say of the other half", `!document.getElementById("reading").hidden && !document.querySelector("#reading .missing")`)
	r = s.retell(t, even)
	r.completeFrom = time.Now().Add(-6 * time.Hour) // hits were lost then, long after counting began
	b = open(t, r.URL+"/?key=a&range=24h&compare=0", desktop)
	b.until("what lies before the loss to be shaded", `Math.abs(document.querySelector("#plot .uncounted").getBoundingClientRect().width / document.querySelector("#plot .grid").getBoundingClientRect().width - 0.75) < 0.03`)
	b.mouse(moved, "#plot .drawing", 0.2, 0)
	b.until("that hits are missing", `/^Hits of the time before .+ are known to be missing\.$/.test(document.querySelector("#reading .missing")?.textContent)`)
	r = s.retell(t, even)
	r.late = 30 * time.Minute
	b = open(t, r.URL+"/?key=a&range=1h&compare=0", phone)
	b.until("half of it not to be counted", `Math.abs(document.querySelector("#plot .uncounted").getBoundingClientRect().width / document.querySelector("#plot .grid").getBoundingClientRect().width - 0.5) < 0.05`)
	b.mouse(moved, "#plot .drawing", 0.8, 0)
	b.until("why not", `/^Hits after .+ are not counted yet\.$/.test(document.querySelector("#reading .missing")?.textContent)`)
	b.clean(r.URL)
}

// Numbers of 13 digits and long names fit into the chart on a phone, and the dark mode has its own colours.
func fitIntoScreens(t *testing.T, s *system) {
	r := s.retell(t, func(string, time.Time, time.Duration) int64 { return 8_765_432_109_876 })
	for _, as := range []looks{{390, 844, "dark"}, {320, 640, "light"}, {1440, 900, "dark"}} {
		b := open(t, r.URL+"/?range=24h&compare=0&key="+longName+"&key=b", as)
		b.until("a chart", plotted)
		for _, scale := range []string{"linear", "log", "apart"} {
			eval[bool](b, fmt.Sprintf(`(document.querySelector('#scales input[value="%s"]').click(), true)`, scale))
			b.until("the scale "+scale, plotted)
			b.mouse(moved, "#plot .drawing", 0.95, 0)
			b.until("a reading", `/8,765,432,109,876/.test(document.getElementById("reading").textContent)`)
			if out := eval[[]string](b, `[...document.querySelectorAll("#plot text:not(.name), #reading")].filter((node) => ((r, box) => r.width > 0 && (r.left < box.left - 1 || r.right > box.right + 1))(node.getBoundingClientRect(), document.getElementById("chart").getBoundingClientRect())).map((node) => node.textContent)`); len(out) > 0 {
				t.Errorf("%+v, %s: outside of the chart is %q", as, scale, out)
			}
			b.requireNarrow(as)
		}
		want := map[string]string{"light": "rgb(0, 114, 178)", "dark": "rgb(64, 160, 250)"}[as.scheme]
		require.Equal(t, want, eval[string](b, `getComputedStyle(document.querySelector("#plot path.line")).stroke`), "%+v: the first line", as)
		b.clean(r.URL)
	}
}

// Counters are asked for in one question, and each prefix in one of its own, with the same steps.
func seePrefixes(t *testing.T, s *system) {
	r := s.retell(t, even)
	b := open(t, r.URL+"/?key=a&range=24h&step=15m&compare=0", desktop)
	b.until("a chart", plotted)
	r.mu.Lock()
	r.asked = nil
	r.mu.Unlock()
	b.draw(`lines: [{ name: "a", key: "a" }, { name: "all of it", prefix: "shop." }, { name: "b", key: "b" }], window: "24h", step: "1h"`)
	b.until("three lines", `[...document.querySelectorAll("#legend li")].map((li) => li.textContent).join() === "a,all of it,b" && document.querySelector('#plot path[data-line="2"]')`)
	r.mu.Lock()
	defer r.mu.Unlock()
	asked := make(map[string]bool)
	for _, q := range r.asked {
		asked[fmt.Sprint(q["key"], q["prefix"], q["step"])] = true
	}
	if !asked["[a b] [] [1h]"] || !asked["[] [shop.] [1h]"] {
		t.Errorf("asked %v", asked)
	}
	b.clean(r.URL)
}

// Where a tier holds years, the chart offers months and years of the calendar, and asks for those of the
// reader's zone.
func TestStepsOfYears(t *testing.T) {
	s := startWithTiers(t, "1m/1d,1d/5y")
	s.hit("a")
	stack.EventuallyTotal(t, s.query.URL(), "a", "1h", 1)
	from := time.Now().Add(-1790 * 24 * time.Hour).UTC().Format(time.RFC3339)
	b := open(t, s.query.URL()+"/?key=a&range=custom&compare=0&from="+from, desktop)
	b.until("months and years", `[...document.getElementById("step").options].map((o) => o.textContent).join() === "1 day,1 week,1 month,1 year" && document.getElementById("step").value === "1mo"`)
	eval[bool](b, `((step) => { step.value = "1y"; step.dispatchEvent(new Event("change")); return true; })(document.getElementById("step"))`)
	b.until("years", `document.getElementById("plot").dataset.step === "1y" && Number(document.getElementById("plot").dataset.points) >= 1 && new URLSearchParams(location.search).get("step") === "1y"`)
	asked := eval[string](b, `performance.getEntriesByType("resource").map(({ name }) => name).filter((name) => name.includes("/v1/series") && name.includes("step=1y")).at(-1)`)
	zone := eval[string](b, `Intl.DateTimeFormat().resolvedOptions().timeZone`)
	if u, err := url.Parse(asked); err != nil || u.Query().Get("tz") != zone {
		t.Errorf("asked %s, want the years of %s", asked, zone)
	}
	b.clean(s.query.URL())
}
