package page_test

import (
	"strings"
	"testing"
	"time"

	"tallyroll/tests/stack"
)

// mostBytes is what the whole page may take on the wire, compressed, with the headers.
const mostBytes = 96 << 10

// A first visit costs little and shows totals soon.
func TestFirstLoad(t *testing.T) {
	s := start(t)
	s.hit("a")
	stack.EventuallyTotal(t, s.query.URL(), "a", "1h", 1)
	b := open(t, "about:blank", desktop)
	began := time.Now()
	eval[bool](b, "!!(location.href = '"+s.query.URL()+"/?key=a')")
	b.until("the first total", hits("a")+` === "1"`)
	took := time.Since(began)
	b.until("the whole page", `document.querySelector("#plot path, #plot circle") && document.querySelector("#rows .sparkline")`)

	b.mu.Lock()
	defer b.mu.Unlock()
	files, all := 0, int64(0)
	for address, n := range b.bytes {
		if path := strings.TrimPrefix(address, s.query.URL()); strings.HasPrefix(path, "/page/") || strings.HasPrefix(path, "/?") {
			files++
			all += n
		}
	}
	t.Logf("%d files, %d bytes; first total after %v", files, all, took)
	if files < 10 || all > mostBytes {
		t.Errorf("the first load is %d files of %d bytes together, at most %d are allowed", files, all, mostBytes)
	}
}
