// Package setting reads a program's settings from the environment, secret files and other files. Its errors
// name the setting and what is allowed. Its exit codes tell a wrong setting from a failure.
package setting

import (
	"cmp"
	"encoding"
	"errors"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
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
func finish(s reflect.Value, environment map[string]string, files map[string]SecretFile, unknown []Unknown) error {
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
