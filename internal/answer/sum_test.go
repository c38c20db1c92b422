package answer

import (
	"math"
	"testing"

	"tallyroll/internal/window"
)

func TestGroupOf(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, want string
		parts      int
	}{
		{"shop.eu.cart", "shop", 1}, {"shop.eu.cart", "shop.eu", 2}, {"shop.eu.cart", "shop.eu.cart", 3}, {"shop.eu", "shop.eu", 9},
		{"/cart/items", "/cart", 1}, {"/cart/items", "/cart/items", 2}, {"/", "/", 1}, {"a..b", "a.", 2}, {"shop.eu/x", "shop.eu", 2}, {"größe.☃", "größe", 1},
	} {
		if got := groupOf(c.name, c.parts); got != c.want {
			t.Errorf("the first %d parts of %s are %q, want %q", c.parts, c.name, got, c.want)
		}
	}
	g := SumGroup{}
	g.Add(window.Estimate{Total: math.MaxInt64, Upper: math.MaxInt64})
	g.Add(window.Estimate{Total: 1, Upper: math.MaxInt64})
	if g.Total != math.MaxInt64 || g.Upper != math.MaxInt64 {
		t.Errorf("%+v", g)
	}
}
