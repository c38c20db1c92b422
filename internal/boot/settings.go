package boot

import (
	"cmp"
	"encoding"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/caarlos0/env/v11"
)

// SettingError means that a setting cannot be used. Its text is one line: variable, value, and what is
// allowed.
type SettingError struct {
	Key     string // the environment variable
	Value   string // as it was given; empty for secrets
	Allowed string // a phrase: "a duration from 1ms to 1m, such as 250ms"
}

// CheckSetting returns the *SettingError of a setting that a check has refused with err; nil for nil.
func CheckSetting(key, value string, err error) error {
	if err == nil {
		return nil
	}
	return &SettingError{Key: key, Value: value, Allowed: err.Error()}
}

func (e *SettingError) Error() string {
	if e.Value == "" || isContent(e.Value) {
		return fmt.Sprintf("%s: allowed is %s", e.Key, Conceal(e.Value, e.Allowed))
	}
	return fmt.Sprintf("%s=%q: allowed is %s", e.Key, e.Value, e.Allowed)
}

// contents matches what files of secrets hold: an NKey seed, a JWT, PEM, several lines, or tokens in YAML.
var contents = regexp.MustCompile(`^S[A-Z2-7]{40,}$|^eyJ|-----BEGIN|\n|tokens?:|sha256:`)

// isContent reports whether a file's content was given where its name belongs.
func isContent(value string) bool { return contents.MatchString(value) }

// Conceal returns a text about a file, without the name if that is a secret by mistake.
func Conceal(name, text string) string {
	if !isContent(name) {
		return text
	}
	return strings.ReplaceAll(text, name, "…, which is the content of such a file")
}

type validator interface{ Validate() error }

// Parse fills the struct that settings points to from the environment, by its `env`, `envDefault` and `help`
// tags, then validates its structs, inner ones first. It returns the first unusable setting as a
// *SettingError. Variables given as KEY=value override the environment. A setting tagged `secret:"true"` can
// also be given as a file, by its name with _FILE. A bool tagged `given:"KEY"` is set if KEY is in the
// environment, one tagged `emptied:"KEY"` if it is there and empty; a SecretFile tagged `file:"KEY"` if KEY
// was read from a file. `unknown` gets variables that look like settings but are not.
func Parse(settings any, override ...string) error {
	environment := env.ToMap(append(os.Environ(), override...))
	options := env.Options{
		Environment: environment,
		FuncMap: map[reflect.Type]env.ParserFunc{
			reflect.TypeFor[time.Duration](): func(text string) (any, error) { return ParseDuration(text) },
		},
	}
	files, err := readSecrets(settings, environment, override)
	if err != nil {
		return err
	}
	if err := env.ParseWithOptions(settings, options); err != nil {
		return settingError(settings, err, environment, files)
	}
	return finish(reflect.ValueOf(settings).Elem(), environment, files, unknownSettings(settings, environment))
}

// finish fills the fields tagged `given`, `emptied`, `file` and `unknown`, and validates.
func finish(s reflect.Value, environment map[string]string, files map[string]SecretFile, unknown []UnknownSetting) error {
	for f, v := range s.Fields() {
		switch {
		case !f.IsExported():
		case f.Tag.Get("given") != "":
			v.SetBool(environment[f.Tag.Get("given")] != "") // the library, too, treats an empty variable as missing
		case f.Tag.Get("emptied") != "":
			value, there := environment[f.Tag.Get("emptied")]
			v.SetBool(there && value == "")
		case f.Tag.Get("file") != "":
			v.Set(reflect.ValueOf(files[f.Tag.Get("file")]))
		case f.Tag.Get("unknown") != "":
			v.Set(reflect.ValueOf(unknown))
		case f.Tag.Get("env") == "" && f.Type.Kind() == reflect.Struct:
			if err := finish(v, environment, files, unknown); err != nil {
				return err
			}
		}
	}
	if v, ok := s.Addr().Interface().(validator); ok {
		return v.Validate()
	}
	return nil
}

// settingError turns the library's error into one about the first bad variable.
func settingError(settings any, err error, environment map[string]string, files map[string]SecretFile) error {
	var aggregate env.AggregateError
	if errors.As(err, &aggregate) && len(aggregate.Errors) > 0 {
		err = aggregate.Errors[0]
	}
	var parse env.ParseError
	if !errors.As(err, &parse) {
		return err
	}
	for _, f := range fields(reflect.TypeOf(settings).Elem()) {
		if f.name != parse.Name || f.typ != parse.Type {
			continue
		}
		if file := files[f.key]; file.Set() {
			return file.refuse(allowed(parse))
		}
		out := &SettingError{Key: f.key, Allowed: allowed(parse)}
		if !f.secret {
			out.Value = environment[f.key]
		}
		return out
	}
	return err
}

// allowed returns what a type accepts. A type that parses itself says so in its own error.
func allowed(parse env.ParseError) string {
	if reflect.PointerTo(parse.Type).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()) {
		return parse.Err.Error()
	}
	switch {
	case parse.Type == reflect.TypeFor[time.Duration]():
		return durationForms
	case parse.Type.Kind() == reflect.Int || parse.Type.Kind() == reflect.Int64:
		return "a whole number"
	case parse.Type.Kind() == reflect.Bool:
		return "true or false"
	}
	return "a " + parse.Type.String()
}

type field struct {
	name, key, def, help string
	typ                  reflect.Type
	secret               bool
}

func fields(t reflect.Type) []field {
	var out []field
	for f := range t.Fields() {
		key, _, _ := strings.Cut(f.Tag.Get("env"), ",")
		switch {
		case key != "":
			out = append(out, field{
				name: f.Name, typ: f.Type, key: key, def: f.Tag.Get("envDefault"), help: f.Tag.Get("help"),
				secret: f.Tag.Get("secret") == "true",
			})
		case f.Type.Kind() == reflect.Struct:
			out = append(out, fields(f.Type)...)
		}
	}
	return out
}

// UnknownSetting is a variable with the program's prefix that is not one of its settings.
type UnknownSetting struct {
	Key     string
	Nearest string // the setting with the most similar name
}

// fromKubernetes matches the variables that Kubernetes sets for a Service, which can have the program's name.
var fromKubernetes = regexp.MustCompile(`_SERVICE_(HOST|PORT)(_|$)|_PORT_[0-9]+_[A-Z]+(_|$)|_PORT$`)

// unknownSettings finds variables that begin like the program's address setting, such as QUERY_, and are not
// settings. Other prefixes, such as REDIS_, belong to several programs, or to others than ours.
func unknownSettings(settings any, environment map[string]string) (out []UnknownSetting) {
	addr, ok := addrField(settings)
	if !ok {
		return nil
	}
	program, _, _ := strings.Cut(addr.key, "_")
	var known []string
	for _, f := range fields(reflect.TypeOf(settings).Elem()) {
		known = append(known, f.key)
		if f.secret {
			known = append(known, f.key+"_FILE")
		}
	}
	for _, key := range slices.Sorted(maps.Keys(environment)) {
		if environment[key] == "" || !strings.HasPrefix(key, program+"_") || slices.Contains(known, key) || fromKubernetes.MatchString(key) {
			continue
		}
		nearest := slices.MinFunc(known, func(a, b string) int { return cmp.Compare(distance(key, a), distance(key, b)) })
		out = append(out, UnknownSetting{key, nearest})
	}
	return out
}

// distance is the Levenshtein distance.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

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
	for _, f := range fields(reflect.TypeOf(settings).Elem()) {
		def := f.def
		if def == "" {
			def = "(none)"
		}
		fmt.Fprintf(tw, "  %s\t%s\t%s\n", f.key, def, f.help)
	}
	_ = tw.Flush()
	if secrets := secretKeys(settings); len(secrets) > 0 {
		fmt.Fprintf(w, "\nEach of %s can be given as a file instead: %s_FILE names it. It is read again for each use.\n", strings.Join(secrets, ", "), secrets[0])
	}
	fmt.Fprintf(w, "\nFlags: --help prints this, --version the version.\n")
	if addr, ok := addrField(settings); ok {
		fmt.Fprintf(w, "--healthcheck asks the program at %s for /healthz: exit code 0 if it is well, 1 if not.\n", addr.key)
	}
	for _, m := range modes {
		fmt.Fprintf(w, "--%s %s\n", m.Name, m.Help)
	}
}

func addrField(settings any) (field, bool) {
	for _, f := range fields(reflect.TypeOf(settings).Elem()) {
		if strings.HasSuffix(f.key, "_ADDR") {
			return f, true
		}
	}
	return field{}, false
}

// Flags answers --help, --version and, for a program that serves HTTP, --healthcheck, runs the modes, and
// refuses other arguments. It reports whether the program should go on.
func Flags(program, about string, settings any, modes ...Mode) (proceed bool) {
	args := os.Args[1:]
	addr, serves := addrField(settings)
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
		fmt.Println(program, Version())
	case serves && slices.Contains([]string{"--healthcheck", "-healthcheck"}, args[0]):
		if err := Healthcheck(addr.key, addr.def); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
			os.Exit(ExitFailure)
		}
	default:
		fmt.Fprintf(os.Stderr, "%s: unknown argument %q: settings are environment variables, see %s --help\n", program, args[0], program)
		os.Exit(ExitUsage)
	}
	return false
}

func runMode(program string, m Mode, args []string) {
	code, err := m.Run(args)
	if err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", program, err)
		code = max(code, exitCode(err))
	}
	os.Exit(code)
}

// CheckAddress refuses a setting that is not an address to listen on.
func CheckAddress(key, value string) error {
	if _, _, err := net.SplitHostPort(value); err != nil {
		return &SettingError{Key: key, Value: value, Allowed: "host:port"}
	}
	return nil
}

// Most is a setting that is an upper bound.
type Most struct {
	Key string
	N   int64
}

// CheckMost refuses the first bound that allows nothing.
func CheckMost(all ...Most) error {
	for _, m := range all {
		if m.N < 1 {
			return &SettingError{Key: m.Key, Value: strconv.FormatInt(m.N, 10), Allowed: "a whole number from 1 on"}
		}
	}
	return nil
}

const durationForms = "a duration: numbers with units (ms, s, m, h, d of 24 hours, w of 7 days), such as 250ms, 10s, 48h or 2d"

var errDuration = errors.New(durationForms)

// ParseDuration is time.ParseDuration with days and weeks in front: 250ms, 48h, 2d, 1w, 1d12h, 1.5d.
func ParseDuration(text string) (time.Duration, error) {
	rest, negative := strings.CutPrefix(text, "-")
	var days time.Duration
	found := false
	for _, unit := range []struct {
		name   string
		length time.Duration
	}{{"w", 7 * 24 * time.Hour}, {"d", 24 * time.Hour}} {
		number, after, ok := strings.Cut(rest, unit.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(number, 64)
		length := n * float64(unit.length)
		if err != nil || strings.Trim(number, "0123456789.") != "" || length >= math.MaxInt64/4 {
			return 0, errDuration
		}
		days, rest, found = days+time.Duration(length), after, true
	}
	hours := time.Duration(0)
	if rest != "" || !found {
		var err error
		if hours, err = time.ParseDuration(rest); err != nil || hours < 0 || hours > math.MaxInt64/2 {
			return 0, errDuration
		}
	}
	if negative {
		return -(days + hours), nil
	}
	return days + hours, nil
}
