package boot

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLogFormat(t *testing.T) {
	var byDefault struct{ Log Log }
	if err := Parse(&byDefault); err != nil || byDefault.Log.Format != "auto" {
		t.Fatalf("%+v, %v", byDefault, err)
	}
	write := func(format LogFormat) string {
		var text bytes.Buffer
		log := byDefault.Log
		log.Format = format
		line := log.New(NewScreen(&text, "messages"))
		line.Info().Msg("hello")
		return text.String()
	}
	if got := write("auto"); !strings.HasPrefix(got, "{") {
		t.Errorf("auto, into a file: %q", got)
	}
	if got := write("json"); !strings.HasPrefix(got, "{") {
		t.Errorf("json: %q", got)
	}
	if got := write("console"); strings.HasPrefix(got, "{") || strings.Contains(got, "\x1b") {
		t.Errorf("console, into a file: %q", got)
	}
	// Lines of several programs are put in order by their times.
	if got := write("json"); !regexp.MustCompile(`"time":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}(Z|[+-]\d\d:\d\d)"`).MatchString(got) {
		t.Errorf("json has no milliseconds: %q", got)
	}
	if got := write("console"); !regexp.MustCompile(`^\d\d:\d\d:\d\d\.\d{3} INF hello`).MatchString(got) {
		t.Errorf("console has no milliseconds: %q", got)
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	defer file.Close()
	if isTerminal(file) || isTerminal(NewScreen(file, "messages")) {
		t.Error("a file is taken for a terminal")
	}
}

// ConnectedUrlRedacted leaves tokens in: outside of this package nobody may ask a
// connection where it is.
func TestOnlyBootPrintsServers(t *testing.T) {
	for _, dir := range []string{"../../cmd", "../../internal"} {
		err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || filepath.Base(filepath.Dir(path)) == "boot" {
				return err
			}
			text, err := os.ReadFile(path)
			if bytes.Contains(text, []byte(".ConnectedUrl")) {
				t.Errorf("%s asks a connection for its URL: take boot.NATSServer", path)
			}
			return err
		})
		require.NoError(t, err)
	}
}
