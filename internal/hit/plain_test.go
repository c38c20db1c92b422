package hit

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// checkPlain fails if the short way reads an object otherwise than the long one.
func checkPlain(t interface{ Fatalf(string, ...any) }, raw []byte) (plain bool) {
	short, long := newObject(), newObject()
	short.reset(5)
	if !short.readPlain(raw) {
		return false
	}
	var h, want Hit
	got := short.fill(&h, "subject")
	refused := long.readAny(&want, raw, "subject", 5)
	if !reflect.DeepEqual(got, refused) || string(h.Counter) != string(want.Counter) || h.N != want.N || h.At != want.At || string(h.Unique) != string(want.Unique) || (h.Unique == nil) != (want.Unique == nil) || h.Excluded != want.Excluded {
		t.Fatalf("%q is %+v (%v), and as JSON %+v (%v)", raw, h, got, want, refused)
	}
	return true
}

var plainSeeds = []string{
	`{"key":"a"}`, `{"key": "a", "n": 3}`, `{"key":"a","n":3,"ts":1763720000000}`, `{"ts":0,"n":1}`, `{"n":1}`, `{"key":""}`,
	`{"key":"a","key":"b"}`, `{"key":"\u0061"}`, `{"key":"ä"}`, `{"n":01}`, `{"n":0}`, `{"n":-1}`, `{"n":1099511627777}`, `{"ts":1234567890123456789}`,
	`{"key":"a",}`, `{"key":"a"`, `{"key":"a"}}`, `{"key":"a"} `, `{}`, `{`, ``, `{"key":"a" ,"n":1}`, `{"n":}`, `{"n":1.5}`, `{"key":5}`, `{"key":"a","Key":"b"}`, `{"key":"a";"n":1}`,
	`{"key":"a","unique":"u-17"}`, `{"unique":"u-17","key":"a","n":3}`, `{"unique":"u-17"}`, `{"key":"a","unique":"x","unique":"y"}`, `{"key":"a","unique":""}`, `{"key":"a","unique":null}`, `{"key":"a","unique":17}`,
	`{"key":"a","unique":"\u0061"}`, `{"key":"a","unique":"ä"}`, `{"key":"a","unique":"\ud83d"}`, `{"key":"a","unique": "x" }`, `{"key":"a","Unique":"x"}`, `{"key":"a","uniq":"x"}`,
	`{"key":"a","unique":"` + strings.Repeat("x", MaxUnique) + `"}`, `{"key":"a","unique":"` + strings.Repeat("x", MaxUnique+1) + `"}`,
	`{"key":"a","all":false}`, `{"all": false,"n":2}`, `{"key":"a","all":true}`, `{"all":false,"all":true}`, `{"all":true,"all":false}`, `{"all":falsey}`, `{"all":fals}`, `{"all":`, `{"all":0}`, `{"all":"false"}`, `{"All":false}`,
}

// Each seed means the same on both ways.
func TestShortWayReadsSeedsAsTheLongOne(t *testing.T) {
	t.Parallel()
	for _, seed := range plainSeeds {
		checkPlain(t, []byte(seed))
	}
}

func FuzzPlain(f *testing.F) {
	for _, seed := range plainSeeds {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) { checkPlain(t, raw) })
}

// What producers write takes the short way, and means the same on both.
func TestShortWayReadsWhatProducersWrite(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		space := rapid.SampledFrom([]string{"", " "})
		name := rapid.StringMatching(`[ -!#-\[\]-~]{1,20}`).Draw(t, "name")
		raw := fmt.Sprintf(`{"key":%s"%s"`, space.Draw(t, "space"), name)
		if rapid.Bool().Draw(t, "with n") {
			raw += fmt.Sprintf(`,%s"n":%s%d`, space.Draw(t, "space"), space.Draw(t, "space"), rapid.Int64Range(1, MaxN).Draw(t, "n"))
		}
		if rapid.Bool().Draw(t, "with ts") {
			raw += fmt.Sprintf(`,"ts":%d`, rapid.Int64Range(0, 1e18-1).Draw(t, "ts"))
		}
		if rapid.Bool().Draw(t, "with unique") {
			raw += fmt.Sprintf(`,"unique":%s"%s"`, space.Draw(t, "space"), rapid.StringMatching(`[ -!#-\[\]-~]{1,20}`).Draw(t, "unique"))
		}
		if rapid.Bool().Draw(t, "excluded") {
			raw += fmt.Sprintf(`,"all":%sfalse`, space.Draw(t, "space"))
		}
		if !checkPlain(t, []byte(raw+"}")) {
			t.Fatalf("%s} takes the long way", raw)
		}
		// One wrong byte.
		spoilt := []byte(raw + "}")
		spoilt[rapid.IntRange(0, len(spoilt)-1).Draw(t, "place")] = rapid.SampledFrom([]byte("\x00\t\n \"',-+.0159:E\\{}[]ae\x7f\x80\xff")).Draw(t, "byte")
		checkPlain(t, spoilt)
	})
}
