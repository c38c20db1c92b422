package page_test

import (
	"testing"

	"github.com/chromedp/chromedp/kb"

	"tallyroll/tests/stack"
)

const notice = `(document.getElementById("notice").hidden ? "" : document.getElementById("notice").innerText)`

// The browser itself notes each request that fails.
var failedRequests = []string{"Failed to load resource", "net::ERR_"}

// If Redis goes, the page says so and keeps the last numbers. It goes on by itself when Redis is back.
func TestRedisAway(t *testing.T) {
	s := start(t)
	s.hit("a")
	b := open(t, s.query.URL()+"/?key=a", desktop)
	b.until("the total", value("a", "1m")+` === "1"`)
	s.redis.Kill()
	b.until("the page to say that Redis is away", `/Redis/.test(`+notice+`) && document.getElementById("fresh").dataset.state === "red"`)
	if got := eval[string](b, value("a", "24h")); got != "1" {
		t.Errorf("the last known total is %q", got)
	}
	s.redis.Start()
	b.until("the page to recover", notice+` === ""`)
	s.hit("a")
	b.until("a further hit", value("a", "24h")+` === "2"`)
	b.clean(s.query.URL(), failedRequests...)
}

// If no worker counts, the numbers turn amber, then red, and the fleet view says that nobody reads the stream.
func TestWorkerGone(t *testing.T) {
	s := start(t)
	s.hit("a")
	b := open(t, s.query.URL()+"/?key=a", desktop)
	b.until("the total", value("a", "1m")+` === "1"`)
	b.until("a worker", `document.getElementById("fleet-workers").textContent === "1 worker"`)
	s.ingest.Kill()
	s.hit("a")
	b.until("amber", `document.getElementById("fresh").dataset.state === "amber"`)
	b.until("red", `/Counting has stopped/.test(`+notice+`)`)
	b.until("nobody", `document.querySelector("#fleet-streams .bad")?.textContent === "nobody"`)
	s.ingest.Start()
	b.until("the hit that waited", value("a", "24h")+` === "2"`)
	b.until("freshness", `document.getElementById("fresh").dataset.state === "green" && `+notice+` === ""`)
	b.clean(s.query.URL())
}

// If the service goes, the page says so, tries again, and is live when it is back.
func TestLiveLostAndBack(t *testing.T) {
	s := start(t)
	s.hit("a")
	b := open(t, s.query.URL()+"/?key=a", desktop)
	b.until("the total", value("a", "1m")+` === "1"`)
	s.query.Stop()
	b.until("the page to say so", `/live connection is lost/.test(`+notice+`)`)
	s.hit("a")
	s.query.Start()
	b.until("the page to be live", value("a", "24h")+` === "2" && `+notice+` === ""`)
	b.clean(s.query.URL(), failedRequests...)
}

// The page asks for a token, says if it is refused, and keeps the right one for the tab.
func TestToken(t *testing.T) {
	s := start(t, "QUERY_TOKENS=secret")
	s.hit("a")
	b := open(t, s.query.URL()+"/?key=a", desktop)
	b.until("the question", `document.getElementById("token").open && document.activeElement.id === "token-value"`)
	b.press("w", "r", "o", "n", "g", kb.Enter)
	b.until("the refusal", `document.getElementById("token").open && /refused/.test(document.getElementById("token-error").textContent)`)
	b.press("s", "e", "c", "r", "e", "t", kb.Enter)
	b.until("the total", value("a", "1m")+` === "1"`)
	eval[bool](b, `location.reload() ?? true`)
	b.until("the total again", value("a", "1m")+` === "1" && !document.getElementById("token").open`)
	b.clean(s.query.URL(), failedRequests...)
}

// Without NATS_URL the page says what is missing, and shows all else.
func TestWithoutNATS(t *testing.T) {
	s := start(t)
	s.hit("a")
	query := stack.Query(t, s.redis)
	b := open(t, query.URL()+"/?key=a", desktop)
	b.until("the total", value("a", "1m")+` === "1"`)
	b.until("what is missing", `/NATS_URL/.test(document.getElementById("fleet").innerText)`)
	b.clean(query.URL(), failedRequests...)
}
