package program

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"tallyroll/internal/platform/release"
	"tallyroll/internal/platform/setting"
)

// Mode is another job of a program, chosen by its first argument: --Name or --Name=value.
type Mode struct {
	Name string
	Help string // follows the name in --help: arguments, and what it does
	// Run gets all arguments. It returns the exit code, and a human-readable error if that is not enough.
	Run func(args []string) (code int, err error)
}

// Usage prints every setting of the struct that settings points to: variable, default and effect.
func Usage(w io.Writer, program, about string, settings any, modes ...Mode) {
	fmt.Fprintf(w, "%s %s\n\nSettings are environment variables:\n\n", program, about)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, f := range setting.Fields(settings) {
		def := f.Default
		if def == "" {
			def = "(none)"
		}
		fmt.Fprintf(tw, "  %s\t%s\t%s\n", f.Key, def, f.Help)
	}
	_ = tw.Flush()
	if secrets := setting.SecretKeys(settings); len(secrets) > 0 {
		fmt.Fprintf(w, "\nEach of %s can be given as a file instead: %s_FILE names it. It is read again for "+
			"each use.\n", strings.Join(secrets, ", "), secrets[0])
	}
	fmt.Fprintf(w, "\nFlags: --help prints this, --version the version.\n")
	if addr, ok := setting.Address(settings); ok {
		fmt.Fprintf(w, "--healthcheck asks the program at %s for /healthz: exit code 0 if it is well, 1 if not.\n",
			addr.Key)
	}
	for _, m := range modes {
		fmt.Fprintf(w, "--%s %s\n", m.Name, m.Help)
	}
}

// Flags answers --help, --version and, for a program that serves HTTP, --healthcheck, runs the modes, and
// refuses other arguments. It reports whether the program should go on.
func Flags(program, about string, settings any, modes ...Mode) (proceed bool) {
	args := os.Args[1:]
	addr, serves := setting.Address(settings)
	if len(args) == 0 {
		return true
	}
	for _, m := range modes {
		name, _, _ := strings.Cut(strings.TrimPrefix(args[0], "-"), "=")
		if name == m.Name || name == "-"+m.Name {
			runMode(program, m, args)
		}
	}
	switch {
	case slices.Contains([]string{"--help", "-help", "-h"}, args[0]):
		Usage(os.Stdout, program, about, settings, modes...)
	case slices.Contains([]string{"--version", "-version"}, args[0]):
		fmt.Println(program, release.Version())
	case serves && slices.Contains([]string{"--healthcheck", "-healthcheck"}, args[0]):
		if err := Healthcheck(addr.Key, addr.Default); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
			os.Exit(setting.ExitFailure)
		}
	default:
		fmt.Fprintf(os.Stderr, "%s: unknown argument %q: settings are environment variables, see %s --help\n", program,
			args[0], program)
		os.Exit(setting.ExitUsage)
	}
	return false
}

func runMode(program string, m Mode, args []string) {
	code, err := m.Run(args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
		code = max(code, setting.ExitCode(err))
	}
	os.Exit(code)
}
