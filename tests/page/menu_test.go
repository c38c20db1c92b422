package page_test

import (
	"encoding/json"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/require"

	"tallyroll/tests/stack"
)

// What the menu of the chart copies and saves holds what is seen: a command that works in a shell, with the
// token if one is in use, a query for PromQL, the address, a table and a picture. The menu works by keyboard
// alone, and says what it has done.
func useChartMenu(t *testing.T, s *system) {
	names := []string{"it's+1", "shop.eu/cart"}
	for i, name := range names {
		s.publishAll(ago(name, int64(3+i), 10*time.Minute))
	}
	b := open(t, s.query.URL()+"/?"+url.Values{"key": names}.Encode()+"&range=1h", phone)
	b.until("the question for a token", `document.getElementById("token").open`)
	b.press("s", "e", "c", "r", "e", "t", kb.Enter)
	b.until("a chart with the hits", `/^(3|4)$/.test([...document.querySelectorAll("#plot text")].map((text) => text.textContent).filter((text) => text === "4")[0])`)
	profile := chromedp.FromContext(b.ctx).BrowserContextID
	for _, name := range []string{"clipboard-read", "clipboard-write"} {
		_, err := chromedp.Call(b.ctx, browser.SetPermission, browser.SetPermissionParams{BrowserContextID: profile, Permission: &browser.PermissionDescriptor{Name: name}, Setting: browser.PermissionSettingGranted})
		b.must(err)
	}
	folder := t.TempDir()
	_, err := chromedp.Call(b.ctx, browser.SetDownloadBehavior, browser.SetDownloadBehaviorParams{BrowserContextID: profile, Behavior: browser.SetDownloadBehaviorBehaviorAllow, DownloadPath: folder})
	b.must(err)

	const labels = `[...document.querySelectorAll("#chart-menu [role=menuitem]")].map((item) => item.textContent).join()`
	b.click("#chart-menu button")
	b.until("the menu", labels+` === "Log scale,A chart for each,Download CSV,Download SVG,Copy as curl,Copy as PromQL,Copy as a link" && document.activeElement.textContent === "Log scale" && document.querySelector("#chart-menu > * > button").ariaExpanded === "true"`)
	if out := eval[bool](b, `((r) => r.left < 0 || r.right > innerWidth || r.width < 100)(document.querySelector("#chart-menu [role=menu]").getBoundingClientRect())`); out {
		t.Error("the menu is not whole on a phone")
	}
	b.press(kb.ArrowUp)
	b.until("the last item", `document.activeElement.textContent === "Copy as a link"`)
	b.press(kb.Escape)
	b.until("the menu to be closed", `!document.querySelector("#chart-menu [role=menu]").matches(":popover-open") && document.activeElement.ariaHasPopup === "menu" && document.activeElement.ariaExpanded === "false"`)

	pick := func(down int, done string) {
		t.Helper()
		eval[bool](b, `(document.querySelector(".toast").textContent = "", document.querySelector("#chart-menu button").focus(), true)`)
		b.press(kb.ArrowDown)
		b.until("the menu to be open", `document.activeElement.textContent === "Log scale"`)
		for range down + 2 { // a phone has the scales in the menu
			b.press(kb.ArrowDown)
		}
		b.press(kb.Enter)
		b.until(done, fmt.Sprintf(`document.querySelector(".toast[role=status]").textContent === %q && document.activeElement.ariaHasPopup === "menu"`, done))
	}
	copied := func(down int, done string) string {
		t.Helper()
		pick(down, done)
		eval[bool](b, `(window.got = undefined, navigator.clipboard.readText().then((text) => { window.got = text; }), true)`)
		b.until("the clipboard to be read", `window.got !== undefined`)
		return eval[string](b, `window.got`)
	}

	command := copied(2, "Copied the command.")
	if !strings.HasPrefix(command, `curl -sS -H "Authorization: Bearer $TOKEN" '`+s.query.URL()+`/v1/series?key=it%27s%2B1&key=shop.eu%2Fcart&from=`) {
		t.Errorf("copied %s", command)
	}
	shell := exec.Command("sh", "-c", command)
	shell.Env = append(os.Environ(), "TOKEN=secret")
	out, err := shell.Output()
	var answer struct{ Series []struct{ Points [][2]int64 } }
	if err != nil || json.Unmarshal(out, &answer) != nil || len(answer.Series) != 2 {
		t.Fatalf("%s: %v: %s", command, err, out)
	}
	for i, line := range answer.Series {
		sum := int64(0)
		for _, point := range line.Points {
			sum += point[1]
		}
		if sum != int64(3+i) {
			t.Errorf("the command counts %d of %s", sum, names[i])
		}
	}

	promql := stack.PromQL(t, s.redis)
	query := copied(3, "Copied the query.")
	if want := `sum_over_time(tallyroll_hits{key=~"it's\\+1|shop[.]eu/cart"}[1m])`; query != want {
		t.Errorf("copied %s, want %s", query, want)
	}
	wide := strings.Replace(query, "[1m]", "[30m]", 1)
	stack.Eventually(t, "the query to be answered", func() (bool, string) {
		status, body, err := stack.Do(http.MethodGet, promql.URL()+"/api/v1/query?query="+url.QueryEscape(wide), nil)
		text := string(body)
		return status == http.StatusOK && strings.Contains(text, `"key":"it's+1"`) && strings.Contains(text, `,"3"]`) && strings.Contains(text, `"key":"shop.eu/cart"`) && strings.Contains(text, `,"4"]`), fmt.Sprint(status, err, text)
	})

	require.Equal(t, eval[string](b, "location.href"), copied(4, "Copied the address of this view."), "copied")

	saved := func(name, part string) (text string) {
		t.Helper()
		stack.Eventually(t, "all of "+name, func() (bool, string) { // a browser may write it piece by piece
			data, err := os.ReadFile(filepath.Join(folder, name))
			text = strings.TrimSpace(string(data))
			return strings.Contains(text, part), fmt.Sprint(text, err)
		})
		return text
	}
	pick(0, "Saved tallyroll-2-lines.csv.")
	if rows := saved("tallyroll-2-lines.csv", ",3,4,false"); !strings.HasPrefix(rows, "time,it's+1,shop.eu/cart,complete\n") {
		t.Errorf("the table is %q", rows)
	}
	pick(1, "Saved tallyroll-2-lines.svg.")
	picture := saved("tallyroll-2-lines.svg", "</svg>")
	if err := xml.Unmarshal([]byte(picture), new(struct{})); err != nil || !strings.Contains(picture, "rgb(0, 114, 178)") || !strings.Contains(picture, "shop.eu/cart") || strings.Contains(picture, "var(") {
		t.Errorf("%v: the picture is %s", err, picture)
	}
	b.point("#rows-menu button") // so that the focus scrolls nothing, which would close the menu
	eval[bool](b, `(document.querySelector("#rows-menu button").focus(), true)`)
	b.press(kb.Enter)
	b.until("the menu of the table", `document.activeElement.textContent === "Download CSV"`)
	b.press(kb.Enter)
	require.Equal(t, "key,total,lower,upper\nshop.eu/cart,4,4,4\nit's+1,3,3,3\na,1,1,1", saved("tallyroll-counters.csv", "a,1,1,1"), "the table")
	b.clean(s.query.URL(), append(failedRequests, "blob:")...)
}
