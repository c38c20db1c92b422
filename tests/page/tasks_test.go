package page_test

import (
	"testing"
	"time"
)

// Three questions that people come with are answered within two clicks. The log says in what time.
func TestQuestionsOfANewUser(t *testing.T) {
	s := start(t, namedLimits(t))
	s.shop()
	for range 6 {
		s.take(`{"limit":"login","key":"alice"}`)
	}
	s.take(`{"limit":"login","key":"bob"}`)
	clicks := 0
	var b *tab
	click := func(selector string) {
		b.click(selector)
		clicks++
	}
	for _, task := range []struct {
		question string
		do       func()
	}{
		{"which page grew most since yesterday", func() {
			// Until the chart is there, what is below it moves, and a click can miss.
			b.until("the counters and their chart", `document.querySelector("#rows .change").dataset.kind && document.querySelectorAll("#legend li").length === 3 && !document.getElementById("chart-hint").hidden`)
			click(`.sort[data-sort="change"]`)
			b.until("the one that grew most", listed+`.split(",")[0] === "blog"`)
		}},
		{"how many checkouts in the EU this month", func() {
			click(`#range input[value="month"]`)
			click("#search")
			b.press("o", "u", "t", ".", "e", "u")
			b.until("the counter and its total", listed+` === "shop.checkout.eu" && /^[1-9]/.test(`+hits("shop.checkout.eu")+`)`)
		}},
		{"who is limited now", func() {
			click(`#views a[href*="limits"]`)
			b.until("the keys, those that are refused first", `document.querySelector("#busiest-rows tr")?.textContent.startsWith("alice")`)
		}},
	} {
		b = open(t, s.query.URL()+"/", desktop)
		b.until("the page", `document.querySelector("#rows tr")`)
		clicks = 0
		began := time.Now()
		task.do()
		t.Logf("%s: %d clicks, %.1f s", task.question, clicks, time.Since(began).Seconds())
		if clicks > 2 {
			t.Errorf("%s takes %d clicks", task.question, clicks)
		}
	}
}
