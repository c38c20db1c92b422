package setting

import (
	"reflect"
	"strings"
)

// Field is a setting as the tags of its struct give it.
type Field struct {
	name, Key, Default, Help string
	typ                      reflect.Type
	secret                   bool
}

// Fields returns the settings of the struct that settings points to, inner ones included.
func Fields(settings any) []Field { return fieldsOf(reflect.TypeOf(settings).Elem()) }

func fieldsOf(t reflect.Type) []Field {
	var out []Field
	for f := range t.Fields() {
		key, _, _ := strings.Cut(f.Tag.Get("env"), ",")
		switch {
		case key != "":
			out = append(out, Field{
				name: f.Name, typ: f.Type, Key: key, Default: f.Tag.Get("envDefault"), Help: f.Tag.Get("help"),
				secret: f.Tag.Get("secret") == "true",
			})
		case f.Type.Kind() == reflect.Struct:
			out = append(out, fieldsOf(f.Type)...)
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
