// Package setting reads a program's settings from the environment, secret files and other files. Its errors
// name the setting and what is allowed. Its exit codes tell a wrong setting from a failure.
package setting

import (
	"cmp"
	"encoding"
	"errors"
	"maps"
	"math"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/caarlos0/env/v11"
)

type validator interface{ Validate() error }

// Parse fills the struct that settings points to from the environment, by its `env`, `envDefault` and `help`
// tags, then validates its structs, inner ones first. It returns the first unusable setting as a
// *Error. Variables given as KEY=value override the environment. A setting tagged `secret:"true"` can
// also be given as a file, by its name with _FILE. A bool tagged `given:"KEY"` is set if KEY is in the
// environment, one tagged `emptied:"KEY"` if it is there and empty; a SecretFile tagged `file:"KEY"` if KEY
// was read from a file. `unknown` gets variables that look like settings but are not. A type with SetKey gets
// the name of its setting.
//
// Several programs can share a struct: where one has it as a field, `envPrefix:"QUERY_"` comes before its
// variables, and replaces {} in their help. For its variable ADDR, `ADDR.default` and `ADDR.help` there take
// precedence over the tags of the struct.
func Parse(settings any, override ...string) error {
	environment := env.ToMap(append(os.Environ(), override...))
	options := env.Options{
		FuncMap: map[reflect.Type]env.ParserFunc{
			reflect.TypeFor[time.Duration](): func(text string) (any, error) { return ParseDuration(text) },
		},
	}
	files, err := readSecrets(settings, environment, override)
	if err != nil {
		return err
	}
	options.Environment = maps.Clone(environment)
	for _, f := range Fields(settings) {
		if environment[f.Key] == "" {
			options.Environment[f.Key] = f.Default
		}
	}
	if err := env.ParseWithOptions(settings, options); err != nil {
		return settingError(settings, err, environment, files)
	}
	return finish(reflect.ValueOf(settings).Elem(), "", environment, files, unknownSettings(settings, environment))
}

// named is the type of a setting whose errors have the setting's name.
type named interface{ SetKey(key string) }

// finish names the fields that are named, fills those tagged `given`, `emptied`, `file` and `unknown`, and
// validates.
func finish(s reflect.Value, prefix string, environment map[string]string, files map[string]SecretFile,
	unknown []Unknown) error {
	for f, v := range s.Fields() {
		switch {
		case !f.IsExported():
		case f.Tag.Get("env") != "":
			if n, ok := v.Addr().Interface().(named); ok {
				n.SetKey(prefix + f.Tag.Get("env"))
			}
		case f.Tag.Get("given") != "":
			v.SetBool(environment[f.Tag.Get("given")] != "") // the library, too, treats an empty variable as missing
		case f.Tag.Get("emptied") != "":
			value, there := environment[f.Tag.Get("emptied")]
			v.SetBool(there && value == "")
		case f.Tag.Get("file") != "":
			v.Set(reflect.ValueOf(files[f.Tag.Get("file")]))
		case f.Tag.Get("unknown") != "":
			v.Set(reflect.ValueOf(unknown))
		case f.Type.Kind() == reflect.Struct:
			if err := finish(v, prefix+f.Tag.Get("envPrefix"), environment, files, unknown); err != nil {
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
	for _, f := range Fields(settings) {
		if f.name != parse.Name || f.typ != parse.Type {
			continue
		}
		if file := files[f.Key]; file.Set() {
			return file.Refuse(allowed(parse))
		}
		out := &Error{Key: f.Key, MustBe: allowed(parse)}
		if !f.secret {
			out.Value = environment[f.Key]
		}
		return out
	}
	return err
}

// allowed returns what a type accepts. The error of a type that parses itself has it.
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

// Field is a setting as the tags of its struct give it.
type Field struct {
	name, Key, Default, Help string
	typ                      reflect.Type
	secret                   bool
}

// Fields returns the settings of the struct that settings points to, inner ones included.
func Fields(settings any) []Field { return fieldsOf(reflect.TypeOf(settings).Elem(), "", "") }

// fieldsOf returns the settings of a struct. outer is the tag of the field that has it.
func fieldsOf(t reflect.Type, prefix string, outer reflect.StructTag) []Field {
	var out []Field
	for f := range t.Fields() {
		switch own := f.Tag.Get("env"); {
		case own != "":
			help := cmp.Or(outer.Get(own+".help"), f.Tag.Get("help"))
			out = append(out, Field{
				name: f.Name, typ: f.Type, Key: prefix + own,
				Default: cmp.Or(outer.Get(own+".default"), f.Tag.Get("envDefault")),
				Help:    strings.ReplaceAll(help, "{}", prefix), secret: f.Tag.Get("secret") == "true",
			})
		case f.Type.Kind() == reflect.Struct:
			out = append(out, fieldsOf(f.Type, prefix+f.Tag.Get("envPrefix"), f.Tag)...)
		}
	}
	return out
}

// Address returns the setting of the address that a program listens on, if it has one.
func Address(settings any) (Field, bool) {
	for _, f := range Fields(settings) {
		if strings.HasSuffix(f.Key, "_ADDR") {
			return f, true
		}
	}
	return Field{}, false
}

// Unknown is a variable with the program's prefix that is not one of its settings.
type Unknown struct {
	Key     string
	Nearest string // the setting with the most similar name
}

// fromKubernetes matches the variables that Kubernetes sets for a Service, which can have the program's name.
var fromKubernetes = regexp.MustCompile(`_SERVICE_(HOST|PORT)(_|$)|_PORT_[0-9]+_[A-Z]+(_|$)|_PORT$`)

// unknownSettings finds variables that begin like the program's address setting, such as QUERY_, and are not
// settings. Other prefixes, such as REDIS_, belong to several programs, or to others than ours.
func unknownSettings(settings any, environment map[string]string) (out []Unknown) {
	addr, ok := Address(settings)
	if !ok {
		return nil
	}
	program, _, _ := strings.Cut(addr.Key, "_")
	var known []string
	for _, f := range Fields(settings) {
		known = append(known, f.Key)
		if f.secret {
			known = append(known, f.Key+"_FILE")
		}
	}
	for _, key := range slices.Sorted(maps.Keys(environment)) {
		if environment[key] == "" || !strings.HasPrefix(key, program+"_") || slices.Contains(known, key) ||
			fromKubernetes.MatchString(key) {
			continue
		}
		nearest := slices.MinFunc(known, func(a, b string) int {
			return cmp.Compare(distance(key, a), distance(key, b))
		})
		out = append(out, Unknown{key, nearest})
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

const durationForms = "a duration: numbers with units (ms, s, m, h, d of 24 hours, w of 7 days), such as 250ms, 10s, " +
	"48h or 2d"

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
