package program

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"tallyroll/internal/platform/setting"
)

// ranWith runs a program with these arguments that has three modes: --check, --read FILE, which can end
// with code 1, and --join FILE FILE.
func ranWith(t *testing.T, args ...string) (out string, proceed bool, code int, err error) {
	t.Helper()
	var text bytes.Buffer
	var file string
	modes := []Mode{
		{Name: "check", Help: "checks.", Reads: "nothing is read", Run: func() (int, error) {
			text.WriteString("checked")
			return setting.ExitOK, nil
		}},
		{Name: "read", Help: "FILE reads.", Reads: "input is read",
			Flags: func(fs *FlagSet) { fs.StringVar(&file, "read", "", "") },
			Run: func() (int, error) {
				text.WriteString("read " + file)
				return setting.ExitFailure, nil
			}},
		{Name: "join", Help: "FILE... joins.", Files: func(files []string) (string, error) {
			if len(files) < 2 {
				return "", setting.BadUsage("too few: %q", files)
			}
			return "joined " + strings.Join(files, "+"), nil
		}},
	}
	proceed, code, err = NewFlagSet("counter").run(args, &text, "counts.", &struct{ Log Log }{}, modes)
	return text.String(), proceed, code, err
}

func TestProgramProceedsOnlyWithoutArguments(t *testing.T) {
	t.Parallel()
	out, proceed, code, err := ranWith(t)
	require.NoError(t, err)
	require.True(t, proceed)
	require.Zero(t, code)
	require.Empty(t, out)
	for args, want := range map[string]string{
		"--version": "counter ", "-version": "counter ", "--check --version": "counter ",
		"--help": "--check checks.\n--read FILE reads.\n", "-h": "LOG_LEVEL", "--read f --help": "LOG_LEVEL",
		"--check": "checked", "-check": "checked",
		"--read f": "read f", "--read=f": "read f", "--join a b": "joined a+b",
	} {
		out, proceed, code, err := ranWith(t, strings.Fields(args)...)
		require.NoError(t, err, args)
		require.False(t, proceed, args)
		require.Contains(t, out, want, args)
		require.Equal(t, strings.HasPrefix(out, "read"), code == setting.ExitFailure, args)
	}
}

// A mode that ignored an argument would do something else than was meant, and a health check would be well.
func TestUnreadArgumentIsRefused(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"more":           `unexpected argument "more": settings are environment variables: see counter --help`,
		"check":          `unexpected argument "check": nothing is read: see counter --help`,
		"--help more":    `unexpected argument "more": settings are environment variables: see counter --help`,
		"--version more": `unexpected argument "more": settings are environment variables: see counter --help`,
		"--check more":   `unexpected argument "more": nothing is read: see counter --help`,
		"--read f more":  `unexpected argument "more": input is read: see counter --help`,
		"--more":         `flag provided but not defined: -more: see counter --help`,
		"--check --more": `flag provided but not defined: -more: see counter --help`,
		"--join a":       `too few: ["a"]`,
		"--read":         `flag needs an argument: -read: see counter --help`,
	} {
		out, proceed, _, err := ranWith(t, strings.Fields(args)...)
		require.EqualError(t, err, want)
		require.Equal(t, setting.ExitUsage, setting.ExitCode(err), args)
		require.False(t, proceed, args)
		require.Empty(t, out, args)
	}
}
