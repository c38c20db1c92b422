package program

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"tallyroll/internal/platform/release"
	"tallyroll/internal/platform/setting"
)

// FlagSet holds the flags of a program or of one of its modes, and --help and --version.
type FlagSet struct {
	*flag.FlagSet
	files         bool // may follow the flags
	help, version bool
}

// NewFlagSet returns a set with only --help and --version.
func NewFlagSet(program string) *FlagSet {
	fs := &FlagSet{FlagSet: flag.NewFlagSet(program, flag.ContinueOnError)}
	fs.SetOutput(io.Discard)
	fs.BoolVar(&fs.help, "help", false, "")
	fs.BoolVar(&fs.help, "h", false, "")
	fs.BoolVar(&fs.version, "version", false, "")
	return fs
}

type value struct {
	text string
	set  func(string) error
}

func (v *value) String() string { return v.text }

func (v *value) Set(s string) error {
	v.text = s
	return v.set(s)
}

// Add adds a flag. The error of set has what is allowed. A default that is not empty goes through set.
func (fs *FlagSet) Add(name, def, usage string, set func(string) error) {
	if def != "" {
		if err := set(def); err != nil {
			panic("default of --" + name + ": " + err.Error())
		}
	}
	fs.Var(&value{text: def, set: set}, name, usage)
}

// Number is a set for Add.
func Number(to *float64, allowed string, ok func(float64) bool) func(string) error {
	return func(s string) error {
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || !ok(f) {
			return fmt.Errorf("must be %s", allowed)
		}
		*to = f
		return nil
	}
}

// Whole is a set for Add.
func Whole(to *int64, least, most int64) func(string) error {
	return func(s string) error {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil || n < least || n > most {
			return fmt.Errorf("must be a whole number from %d to %d", least, most)
		}
		*to = n
		return nil
	}
}

// Read parses the arguments. Its errors are usage errors. reads is a human-readable text of what the program
// reads instead of arguments.
func (fs *FlagSet) Read(args []string, reads string) error {
	err := fs.Parse(args)
	switch {
	case err != nil:
		return setting.BadUsage("%w: see %s --help", err, fs.Name())
	case fs.NArg() > 0 && !fs.files:
		return setting.BadUsage("unexpected argument %q: %s: see %s --help", fs.Arg(0), reads, fs.Name())
	}
	return nil
}

// Begin reads the arguments as Read does, and the settings. over: it has printed help or the version, and
// that is all.
func (fs *FlagSet) Begin(args []string, reads, about string, settings any, out io.Writer) (over bool, err error) {
	if err := fs.Read(args, reads); err != nil {
		return false, err
	}
	if fs.answer(out, about, settings, nil) {
		return true, nil
	}
	return false, setting.Parse(settings)
}

// answer prints the help or the version, if the arguments ask for it.
func (fs *FlagSet) answer(out io.Writer, about string, settings any, modes []Mode) (over bool) {
	switch {
	case fs.help:
		fs.printHelp(out, about, settings, modes)
	case fs.version:
		fmt.Fprintln(out, fs.Name(), release.Version())
	}
	return fs.help || fs.version
}

// printHelp prints every setting of the struct that settings points to (variable, default and effect), the
// modes, and the program's own flags. Flags without a text are described by the rest.
func (fs *FlagSet) printHelp(out io.Writer, about string, settings any, modes []Mode) {
	fmt.Fprintf(out, "%s %s\n\nSettings are environment variables:\n\n", fs.Name(), about)
	var rows [][3]string
	for _, f := range setting.Fields(settings) {
		rows = append(rows, [3]string{f.Key, f.Default, f.Help})
	}
	printTable(out, rows)
	if secrets := setting.SecretKeys(settings); len(secrets) > 0 {
		text := fmt.Sprintf("Each of %s can be given as a file instead: %s_FILE names it. It is read again for each "+
			"use.", strings.Join(secrets, ", "), secrets[0])
		fmt.Fprintf(out, "\n%s\n", wrap("", text, 0))
	}
	fmt.Fprintf(out, "\nFlags: --help prints this, --version the version.\n")
	for _, m := range modes {
		fmt.Fprintln(out, wrap("", "--"+m.Name+" "+m.Help, 0))
	}
	rows = nil
	fs.VisitAll(func(f *flag.Flag) {
		if arg, text := flag.UnquoteUsage(f); text != "" {
			rows = append(rows, [3]string{"--" + f.Name + " " + arg, f.DefValue, text})
		}
	})
	if len(rows) > 0 {
		fmt.Fprintln(out)
	}
	printTable(out, rows)
}

const (
	helpColumns    = 110 // of --help
	defaultColumns = 20  // a longer default shifts the line that it is on
)

// printTable prints names, defaults and what they do.
func printTable(out io.Writer, rows [][3]string) {
	var names, defaults int // columns
	for i, row := range rows {
		rows[i][1] = cmp.Or(row[1], "(none)")
		names, defaults = max(names, len(row[0])), min(max(defaults, len(rows[i][1])), defaultColumns)
	}
	for _, row := range rows {
		start := fmt.Sprintf("  %-*s  %-*s  ", names, row[0], defaults, row[1])
		fmt.Fprintln(out, wrap(start, row[2], names+defaults+6))
	}
}

// wrap breaks the text after start between words, and indents its further lines.
func wrap(start, text string, indent int) string {
	var out strings.Builder
	line := start
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
			line += word
		case utf8.RuneCountInString(line+" "+word) <= helpColumns:
			line += " " + word
		default:
			out.WriteString(line + "\n")
			line = strings.Repeat(" ", indent) + word
		}
	}
	return out.String() + line
}

// Mode is another job of a program, chosen by its first argument: --Name or --Name=value.
type Mode struct {
	Name  string
	Help  string         // follows the name in --help: arguments, and what it does
	Reads string         // what it reads instead of further arguments
	Flags func(*FlagSet) // adds its flags, among them --Name; nil if --Name is the only one, and has no value
	// Run returns the exit code, and a human-readable error if that is not enough.
	Run func() (code int, err error)
	// Files, in place of Flags and Run, returns what to print about the files that follow --Name.
	Files func(files []string) (text string, err error)
}

// Flags answers --help and --version, runs the modes, of which a program that serves HTTP has --healthcheck,
// and refuses other arguments. It reports whether the program should go on.
func Flags(program, about string, settings any, modes ...Mode) (proceed bool) {
	if addr, serves := setting.Address(settings); serves {
		modes = append([]Mode{healthcheckMode(addr)}, modes...)
	}
	fs := NewFlagSet(program)
	proceed, code, err := fs.run(os.Args[1:], os.Stdout, about, settings, modes)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
		code = max(code, setting.ExitCode(err))
	}
	if code != setting.ExitOK {
		os.Exit(code)
	}
	return proceed
}

// run does what the arguments ask for. Without arguments, the program should proceed.
func (fs *FlagSet) run(args []string, out io.Writer, about string, settings any,
	modes []Mode) (proceed bool, code int, err error) {
	mode := Mode{Reads: "settings are environment variables"}
	if len(args) > 0 {
		name, _, _ := strings.Cut(strings.TrimLeft(args[0], "-"), "=")
		if i := slices.IndexFunc(modes, func(m Mode) bool { return m.Name == name }); i >= 0 {
			mode = modes[i]
		}
	}
	switch {
	case mode.Flags != nil:
		mode.Flags(fs)
	case mode.Name != "":
		fs.Bool(mode.Name, false, "")
		fs.files = mode.Files != nil
	}
	if err := fs.Read(args, mode.Reads); err != nil || fs.answer(out, about, settings, modes) {
		return false, setting.ExitOK, err
	}
	if mode.Files != nil {
		text, err := mode.Files(fs.Args())
		fmt.Fprint(out, text)
		return false, setting.ExitOK, err
	}
	if mode.Run == nil {
		return true, setting.ExitOK, nil
	}
	code, err = mode.Run()
	return false, code, err
}
