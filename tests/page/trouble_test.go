package page_test

import (
	"fmt"
	"testing"

	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

const notice = `(document.getElementById("notice").hidden ? "" : document.getElementById("notice").innerText)`

// The browser itself notes each request that fails.
var failedRequests = []string{"Failed to load resource", "net::ERR_"}

// One part after the other goes and comes back.
func TestPageSaysWhatIsAway(t *testing.T) {
	s := start(t)
	for _, c := range []struct {
		part string
		lose func(*testing.T, *system)
	}{{"worker", loseWorker}, {"service", loseService}, {"NATS", loseNATS}, {"Redis", loseRedis}} {
		t.Run(c.part, func(t *testing.T) { c.lose(t, s) })
	}
}

// If Redis goes, the page says so and keeps the last numbers, greyed, with the time they are from, through a
// reload, too. It goes on by itself when Redis is back.
func loseRedis(t *testing.T, s *system) {
	s.hit("b")
	b := open(t, s.query.URL()+"/?key=b", desktop)
	b.until("the total", hits("b")+` === "1"`)
	operate := open(t, s.query.URL()+"/?view=operate", desktop)
	operate.until("the streams", `document.querySelector("#streams .words")`)
	operate.until("freshness", `document.getElementById("fresh").dataset.state === "green"`)
	s.redis.Kill()
	const trouble = `document.getElementById("operate-trouble").textContent`
	operate.until("what is wrong", `/Redis/.test(`+trouble+`) && /comes back by itself/.test(`+trouble+`)`)
	operate.until("what NATS has", `document.querySelector("#streams .words") && document.querySelectorAll("#workers tbody tr").length === 1 && /without Redis/.test(document.getElementById("operate-note").textContent) && /^None\./.test(document.getElementById("rejects-note").textContent)`)
	operate.until("the badge, and the cause", `document.getElementById("fresh").checkVisibility() && document.getElementById("fresh").dataset.state === "red" && /^Not live · Redis is away · numbers of [0-9:]+$/.test(document.getElementById("fresh-text").textContent)`)
	operate.until("grey states, up to when they hold", staleStreams)
	b.until("the page to say that Redis is away", `/Redis/.test(`+notice+`) && document.getElementById("fresh").dataset.state === "red"`)
	require.Equal(t, "1", eval[string](b, hits("b")), "the last known total")
	const muted = `getComputedStyle(document.querySelector("#rows .value")).color === getComputedStyle(document.querySelector("#rows-table thead th")).color && getComputedStyle(document.querySelector("#plot .drawing")).filter !== "none"`
	eval[bool](b, `(window.notReloaded = true, location.reload(), true)`)
	b.until("the last numbers after a reload, and when they were whole", `!window.notReloaded && `+hits("b")+` === "1" && /Redis/.test(`+notice+`) && / · numbers of [0-9:]+$/.test(document.getElementById("fresh-text").textContent)`)
	b.until("them to be grey", plotted+` && `+muted)
	s.redis.Start()
	b.until("the page to recover", notice+` === ""`)
	s.hit("b")
	b.until("a further hit", hits("b")+` === "2"`)
	b.clean(s.query.URL(), failedRequests...)
	operate.until("the view to come back", trouble+` === "" && !document.querySelector("#operate-parts .stale")`)
	operate.clean(s.query.URL(), failedRequests...)
}

// staleStreams evaluates to whether Operate shows the last known streams in grey, and none as keeping up.
const staleStreams = `((box, words) => box.classList.contains("stale") && /^counted up to [0-9:]+$/.test(words?.textContent) && !words.dataset.state &&
	getComputedStyle(words).color === getComputedStyle(document.getElementById("operate-note")).color)(document.getElementById("streams"), document.querySelector("#streams .words"))`

// If NATS goes, the badge names it, and Operate and Alerts keep what was known last, greyed, with since when.
func loseNATS(t *testing.T, s *system) {
	s.watch("{name: sales, key: shop, window: 1h, below: 5, to: [bus]}")
	b := open(t, s.query.URL()+"/", desktop)
	operate := open(t, s.query.URL()+"/?view=operate", desktop)
	alerts := open(t, s.query.URL()+"/?view=alerts", desktop)
	operate.until("the streams", `document.querySelector("#streams .words")?.textContent === "keeping up"`)
	alerts.until("the rules", `document.querySelectorAll("#alerts-rows tr").length === 2`)
	s.nats.Kill()
	operate.until("what was known last", staleStreams+` && /^Last known at /.test(document.getElementById("operate-note").textContent) && document.getElementById("workers").classList.contains("stale") && /NATS/.test(document.getElementById("operate-trouble").textContent)`)
	alerts.until("the last states", `document.getElementById("alerts-parts").classList.contains("stale") && document.querySelectorAll("#alerts-rows tr").length === 2 && /NATS is away\. These states are of /.test(document.getElementById("alerts-trouble").textContent)`)
	b.until("the cause", `/^Not live · .+ behind · NATS is away$/.test(document.getElementById("fresh-text").textContent)`)
	operate.until("them after a reload", `(window.testReloaded ??= (sessionStorage.testReloaded ? 1 : (sessionStorage.testReloaded = 1, location.reload(), 0))) && `+staleStreams)
	s.nats.Start()
	operate.until("the view to come back", `!document.querySelector("#operate-parts .stale") && document.querySelector("#streams .words")?.textContent === "keeping up"`)
	alerts.until("the rules again", `!document.querySelector("#alerts-parts.stale") && document.getElementById("alerts-trouble").textContent === ""`)
	for _, one := range []*tab{b, operate, alerts} {
		one.clean(s.query.URL(), failedRequests...)
	}
}

// startEmptyQuery starts query on a Redis without a layout, and waits until it serves the page.
func startEmptyQuery(t *testing.T, redis stack.Endpoint, env ...string) *stack.Service {
	t.Helper()
	query := stack.Query(t, redis, append(env, stack.NoWait)...)
	stack.Eventually(t, "query to answer", func() (bool, string) {
		status, _, err := stack.Do("GET", query.URL()+"/healthz", nil)
		return status == 200, fmt.Sprint(err)
	})
	return query
}

// If no worker counts, the numbers turn amber, then red. The page describes streams and workers in words.
func loseWorker(t *testing.T, s *system) {
	s.hit("a")
	b := open(t, s.query.URL()+"/?key=a", desktop)
	b.until("the total", hits("a")+` === "1"`)
	operate := open(t, s.query.URL()+"/?view=operate", desktop)
	const words = `document.querySelector("#streams .words")`
	const keepsUp = words + `?.textContent === "keeping up" && ` + words + `.dataset.state === "green"`
	operate.until("a stream that keeps up", keepsUp+` && document.querySelectorAll("#workers tbody tr").length === 1`)
	operate.until("no rejects", `/^None\./.test(document.getElementById("rejects-note").textContent) && document.getElementById("rejects-list").hidden`)
	s.ingest.Kill()
	s.hit("a")
	b.until("amber, and why", `document.getElementById("fresh").dataset.state === "amber" && /^Not live · [0-9]+ s behind · no worker reads HITS$/.test(document.getElementById("fresh-text").textContent)`)
	b.until("red, and why", `/Counting has stopped\. No worker reads HITS\./.test(`+notice+`)`)
	b.until("no rate", `document.querySelector("#sum-rate b").textContent === "–"`)
	b.until("no bound", hits("a")+` === "≥\u202f1" && document.getElementById("hits-note").textContent === "upper bound unknown" && `+cell("a", ".change")+` === "unknown"`)
	b.point(`#rows tr[data-key="a"] .total`)
	b.until("what that means", `/At least 1\.No worker has counted lately/.test(document.getElementById("tip").textContent)`)
	b.until("the chart to say what is not counted", `/are not counted yet/.test(document.getElementById("chart-note").textContent)`)
	operate.until("nobody", words+`?.textContent === "no worker reads it" && /No worker is alive/.test(document.getElementById("workers").textContent)`)
	s.ingest.Start()
	b.until("the hit that waited", hits("a")+` === "2"`)
	b.until("freshness", `document.getElementById("fresh").dataset.state === "green" && `+notice+` === ""`)
	b.until("bounds", `/^since/.test(document.getElementById("hits-note").textContent)`)
	operate.until("the stream to be read again", keepsUp)
	b.clean(s.query.URL())
	operate.clean(s.query.URL())
}

// If the service goes, the page says so, tries again, and is live when it is back.
func loseService(t *testing.T, s *system) {
	s.hit("c")
	b := open(t, s.query.URL()+"/?key=c", desktop)
	b.until("the total", hits("c")+` === "1"`)
	s.query.Stop()
	b.until("the page to say so", `/live connection is lost/.test(`+notice+`)`)
	s.hit("c")
	s.query.Start()
	b.until("the page to be live", hits("c")+` === "2" && `+notice+` === ""`)
	b.clean(s.query.URL(), failedRequests...)
}

// A service with tokens: each view asks for one, and what is copied from the chart is asked with it.
func TestPageAsksForAToken(t *testing.T) {
	s := start(t, "QUERY_TOKENS=secret", namedLimits(t))
	s.hit("a")
	s.sideBySide(map[string]func(*testing.T, *system){
		"invisible characters": typeBadTokens, "views": typeTokens, "menu of the chart": useChartMenu, "docs": tryDocs,
	})
}

// A token with a character that nobody sees, as copies can have, is no lost connection: the page says what is
// wrong with it and asks again, also if the tab has kept it from before.
func typeBadTokens(t *testing.T, s *system) {
	b := open(t, s.query.URL()+"/?key=a", desktop)
	b.until("the question", `document.getElementById("token").open`)
	for _, c := range []struct{ token, says string }{
		{`"sec\u200bret"`, `its character 4 is invisible (U+200B)`}, {`"\ufeffsecret\u2060"`, `its character 7 is invisible (U+2060)`}, {`"se\u00a0cret"`, `its character 3 is invisible (U+00A0)`},
		{`"sec ret"`, `its character 4 is a space`}, {`"sécret"`, `its character 2 is é (U+00E9)`}, {`"secret\u202e"`, `its character 7 is invisible (U+202E)`},
	} {
		eval[bool](b, fmt.Sprintf(`(document.getElementById("token-value").value = %s, document.getElementById("token-form").requestSubmit(), true)`, c.token))
		b.until("what is wrong with "+c.token, fmt.Sprintf(`document.getElementById("token").open && document.activeElement.id === "token-value" && document.getElementById("token-error").textContent.includes(%q)`, c.says))
	}
	b.press("s", "e", "c", "r", "e", "t", kb.Enter)
	b.until("the total", hits("a")+` === "1" && !document.getElementById("token").open && `+notice+` === ""`)
	eval[bool](b, `(sessionStorage.setItem("tallyroll-token", "secret\u200b"), location.reload() ?? true)`)
	b.until("the question again, and why", `document.getElementById("token").open && document.getElementById("token-error").textContent.includes("U+200B")`)
	b.press("s", "e", "c", "r", "e", "t", kb.Enter)
	b.until("the total again", hits("a")+` === "1"`)
	b.clean(s.query.URL(), failedRequests...)
}

// With an empty NATS_URL the page says what is missing where it is, and shows all else.
func leaveOutNATS(t *testing.T, s *system) {
	query := stack.Query(t, s.redis)
	b := open(t, query.URL()+"/?key=blog", desktop)
	b.until("the total", hits("blog")+` === "2,000"`)
	b.click(`#views a[data-to="operate"]`)
	b.until("what is missing", `/NATS_URL=nats:/.test(document.getElementById("operate-trouble").innerText) && document.getElementById("operate-parts").hidden`)
	b.clean(query.URL(), failedRequests...)
}
