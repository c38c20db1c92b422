package collect

import (
	"cmp"
	"fmt"
	"image"
	"image/gif"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/stretchr/testify/require"

	"tallyroll/internal/hit"
	"tallyroll/internal/setting"
	"tallyroll/tests/apitest"
	"tallyroll/tests/cases"
)

const (
	pageOrigins  = "COLLECT_ORIGINS=https://shop.example.com,http://localhost:3000"
	beaconPrefix = "COLLECT_BEACON_PREFIX=web."
)

var pageVariables = []string{pageOrigins, beaconPrefix, "COLLECT_BEACON_MAX_HITS=3", "COLLECT_BEACON_MAX_N=5"}

func TestPixelIsOneTransparentDot(t *testing.T) {
	t.Parallel()
	require.Len(t, pixel, 43)
	img, err := gif.Decode(strings.NewReader(pixel))
	require.NoError(t, err)
	require.Equal(t, image.Rect(0, 0, 1, 1), img.Bounds())
	_, _, _, alpha := img.At(0, 0).RGBA()
	require.Zero(t, alpha)
}

func TestPageSettingsAreRefusedByName(t *testing.T) {
	t.Parallel()
	for set, want := range map[string]string{
		"COLLECT_ORIGINS=*": "each named", "COLLECT_ORIGINS=https://a.example/path": "without a path",
		"COLLECT_ORIGINS=null": "without a path", "COLLECT_ORIGINS=https://*.example": "* within",
		"COLLECT_BEACON_PREFIX=" + strings.Repeat("a", maxPrefix+1): "up to 128 bytes", "COLLECT_BEACON_PREFIX=a\tb": "control",
		"COLLECT_BEACON_MAX_N=0": "from 1 to", "COLLECT_BEACON_MAX_HITS=0": "COLLECT_BEACON_MAX_HITS",
	} {
		key, _, _ := strings.Cut(set, "=")
		err := setting.Parse(new(Settings), set)
		if err == nil || !strings.HasPrefix(err.Error(), key) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", set, err)
		}
	}
}

// format writes hits as a test compares them.
func format(hits ...hit.Hit) string {
	var out []string
	for _, h := range hits {
		out = append(out, fmt.Sprintf("%s×%d", h.Counter, h.N))
		if h.At != hit.NoTime {
			out = append(out, "with a time")
		}
		if h.Unique != nil {
			out = append(out, "of "+string(h.Unique))
		}
	}
	return strings.Join(out, " ")
}

func TestPagesHitsAreReadOrRefused(t *testing.T) {
	t.Parallel()
	s := parseSettings(t, pageVariables...).Pages
	cases.Check(t, "pages", func(t *testing.T, section, given string) string {
		if section != "beacon" {
			h, param, err := gifHit(given)
			if err != nil {
				return fmt.Sprintf("%s refused: %v", param, err)
			}
			return format(h)
		}
		hits, p := s.beaconHits(hit.NewParser(), []byte(given))
		if p != nil {
			require.Empty(t, hits)
			return fmt.Sprintf("%d %s", p.Status, p.Detail)
		}
		return format(hits...)
	})
}

// Nothing of what is refused is stored.
func TestOnlyAllowedCallersAndPagesCount(t *testing.T) {
	t.Parallel()
	r := newRigWithTokens(t, pageVariables...)
	services := map[string]http.Handler{
		"":        r.handler(),
		"hosts":   newOfflineService(t, append(pageVariables, "COLLECT_HOSTS=collect.example.com")...).handler(),
		"nothing": newOfflineService(t).handler(),
		"origins": newOfflineService(t, pageOrigins).handler(),
		"prefix":  newOfflineService(t, beaconPrefix).handler(),
	}
	for _, c := range apitest.ReadRequests(t, "testdata/callers.txt") {
		request, w := c.HTTP(), httptest.NewRecorder()
		request.Host = cmp.Or(c.Options["host"], "collect.test")
		services[c.Options["service"]].ServeHTTP(w, request)
		answer := w.Body.String()
		if w.Code >= 400 && c.Target != "/readyz" {
			checkProblem(t, w.Result(), w.Body.Bytes(), c.Status)
		}
		var header strings.Builder
		require.NoError(t, w.Header().Write(&header))
		require.Equal(t, c.Status, w.Code, "%s: %s", c, answer)
		for want := range strings.SplitSeq(c.Want, " & ") {
			require.Contains(t, strings.ReplaceAll(header.String(), "\r", "")+answer, want, c)
		}
		if c.Status == 403 {
			require.Empty(t, w.Header().Get(allowedOrigin), c)
		}
		if strings.HasPrefix(c.Target, hitsPath) || !strings.HasPrefix(c.Target, "/v1/") || c.Status == 404 {
			continue
		}
		origin := c.Header.Get("Origin")
		allowed := slices.Contains([]string{"https://shop.example.com", "http://localhost:3000"}, origin)
		require.Equal(t, allowed, origin != "" && w.Header().Get("Access-Control-Allow-Origin") == origin, c)
		require.Equal(t, "no-store", w.Header().Get("Cache-Control"), c)
	}
	require.Equal(t, map[string]int64{
		"shop.a": 2, "blog": 1, "shop.shop": 1, "shop.all": 3, "web./cart": 7, "web.b": 3, "web.c": 3,
	}, r.countHits())
}

// What says whom a hit is of is stored as it came: of a request, of a page, and in an event.
func TestUniqueValuesAreStoredAsTheyCame(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil, pageVariables...)
	longest := strings.Repeat("é", hit.MaxUnique/2)
	for _, c := range []struct {
		target, body string
		status       int
	}{
		{hitsPath, `{"unique":"v\u00311","key":"a","n":2}`, 202},
		{hitsPath, `[{"key":"a","unique":"a \"quote\"\n"},{"key":"a"}]`, 202},
		{hitsPath, "{\"key\":\"a\",\"unique\":\"" + longest + "\"}\n{\"key\":\"a\",\"unique\":\"😀\"}", 202},
		{beaconPath, `{"key":"b","unique":"v2"}`, 204},
		{hitsPath, `{"key":"a","unique":"` + longest + `x"}`, 400},
		{hitsPath, `{"key":"a","unique":17}`, 400},
		{beaconPath, `{"key":"b","unique":""}`, 400},
	} {
		var headers []string
		if c.target == beaconPath {
			headers = []string{"Origin", "https://shop.example.com"}
		}
		require.Equal(t, c.status, apitest.Send(r.handler(), "POST", c.target, c.body, headers...).StatusCode, c.body)
	}
	want := []string{"a×2 of v11", "a×1 of a \"quote\"\n a×1", "a×1 of " + longest + " a×1 of 😀", "web.b×1 of v2"}
	var got []string
	d := newDecoder()
	for _, m := range r.storedMessages() {
		hits, _ := d.Decode("", m.Time.UnixMilli(), m.Data)
		for i := range hits {
			hits[i].At = hit.NoTime
		}
		got = append(got, format(hits...))
	}
	require.Equal(t, want, got)
}

// The document is such that others can read it, and has what pages call.
func TestOpenAPIDocumentIsValidAndHasWhatPagesCall(t *testing.T) {
	t.Parallel()
	h := newOfflineService(t, pageVariables...).handler()
	text := apitest.ReadBody(t, apitest.Send(h, "GET", "/openapi.json", ""))
	document, err := openapi3.NewLoader().LoadFromData(text)
	require.NoError(t, err)
	require.NoError(t, document.Validate(t.Context(), openapi3.EnableExamplesValidation()))
	beacon, image := document.Paths.Find(beaconPath), document.Paths.Find(gifPath)
	for name, without := range map[string]string{"Object": "", "PageObject": "ts"} { // a page's ts is refused
		schema := document.Components.Schemas[name].Value
		properties := 0
		for _, f := range hit.Fields {
			p := schema.Properties[f.Name]
			if f.Name == without {
				require.Nil(t, p)
				continue
			}
			properties++
			require.NotNil(t, p, "%s: generated clients cannot send %s", name, f.Name)
			if name == "Object" || f.Name == "unique" {
				require.Equal(t, f.About, p.Value.Description, f.Name)
			}
			switch {
			case f.Types == "string" && (name == "Object" || f.Name == "unique"):
				require.EqualValues(t, f.Least, p.Value.MinLength, f.Name)
				require.EqualValues(t, f.Most, *p.Value.MaxLength, f.Name)
			case f.Types == "integer" && name == "Object":
				require.EqualValues(t, f.Least, *p.Value.Min, f.Name)
				require.EqualValues(t, f.Most, *p.Value.Max, f.Name)
			}
		}
		require.Len(t, schema.Properties, properties, name)
	}
	if beacon == nil || beacon.Post == nil || image == nil || image.Get == nil {
		t.Error("it has not what pages call")
	}
}
