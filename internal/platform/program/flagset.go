package program

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"tallyroll/internal/platform/release"
	"tallyroll/internal/platform/setting"
)

// FlagSet holds the flags of a program that takes more than those of [Flags].
type FlagSet struct {
	*flag.FlagSet
	Version bool
}

// NewFlagSet returns a set with only --version.
func NewFlagSet(program string) *FlagSet {
	fs := &FlagSet{FlagSet: flag.NewFlagSet(program, flag.ContinueOnError)}
	fs.SetOutput(io.Discard)
	fs.Usage = func() {}
	fs.BoolVar(&fs.Version, "version", false, "print the version")
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

// Begin reads the arguments as Read does, and the settings. over: it has printed help or the version, and
// that is all.
func (fs *FlagSet) Begin(args []string, reads, about string, settings any, out io.Writer) (over bool, err error) {
	err = fs.Read(args, reads)
	switch {
	case errors.Is(err, flag.ErrHelp):
		fs.Help(out, about, settings)
		return true, nil
	case err != nil:
		return false, err
	case fs.Version:
		fmt.Fprintln(out, fs.Name(), release.Version())
		return true, nil
	}
	return false, setting.Parse(settings)
}

// PrintLast prints the last line of a program that ends with err. It returns err, or else the print error.
func PrintLast(out io.Writer, line any, err error) error {
	if _, failed := fmt.Fprintln(out, line); err == nil && failed != nil {
		return fmt.Errorf("print the last line: %w", failed)
	}
	return err
}

// Read parses the arguments. Its errors are usage errors, or flag.ErrHelp. reads is a human-readable text of
// what the program reads instead of arguments.
func (fs *FlagSet) Read(args []string, reads string) error {
	err := fs.Parse(args)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return err
	case err != nil:
		return setting.BadUsage("%w: see %s --help", err, fs.Name())
	case fs.NArg() > 0:
		return setting.BadUsage("unexpected argument %q: %s: see %s --help", fs.Arg(0), reads, fs.Name())
	}
	return nil
}

// Help prints the environment variables of settings and the flags.
func (fs *FlagSet) Help(w io.Writer, about string, settings any) {
	Usage(w, fs.Name(), about, settings)
	fmt.Fprintln(w)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fs.VisitAll(func(f *flag.Flag) {
		if f.Name == "version" {
			return // Usage has named it
		}
		arg, text := flag.UnquoteUsage(f)
		def := f.DefValue
		if def == "" {
			def = "(none)"
		}
		fmt.Fprintf(tw, "  --%s %s\t%s\t%s\n", f.Name, arg, def, text)
	})
	_ = tw.Flush()
}
