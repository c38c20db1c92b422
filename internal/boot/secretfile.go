package boot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"

	"github.com/rs/zerolog"
)

// SecretFile is the file of a secret setting (its name with _FILE). The zero value means no file.
type SecretFile struct{ key, path string }

func (f SecretFile) Set() bool { return f.path != "" }

// maxSecret bounds such a file in bytes. A URL of many servers is far below it.
const maxSecret = 64 << 10

// read returns the file's content without trailing line ends. Errors do not quote it.
func (f SecretFile) read() (string, error) {
	info, err := os.Stat(f.path)
	var text []byte
	switch {
	case err == nil && !info.Mode().IsRegular():
		return "", f.refuse("a regular file, because it is read again") // a pipe can be read once
	case err == nil && info.Size() > maxSecret:
		return "", f.refuse(fmt.Sprintf("a file of at most %d bytes", maxSecret))
	case err == nil:
		text, err = os.ReadFile(f.path)
	}
	if err != nil {
		var reason *fs.PathError
		if errors.As(err, &reason) {
			err = reason.Err // without the path
		}
		return "", f.refuse(fmt.Sprintf("a file that can be read (%v)", err))
	}
	secret := strings.TrimRight(string(text), "\r\n")
	if secret == "" {
		return "", f.refuse("a file that is not empty")
	}
	return secret, nil
}

// refuse names the file, unless the name may be the secret itself.
func (f SecretFile) refuse(allowed string) error {
	if _, err := os.Lstat(f.path); err != nil && (!filepath.IsAbs(f.path) || strings.Contains(f.path, "://")) {
		return &SettingError{Key: f.key, Allowed: allowed + "; its name is not shown, because it may be the secret itself: write the whole path, from / on"}
	}
	return &SettingError{Key: f.key, Value: f.path, Allowed: allowed}
}

// readSecrets reads the files of the secret settings into the environment, and changes nothing else there. A
// setting given both ways is an error. overrides are not part of the environment, and win.
func readSecrets(settings any, environment map[string]string, override []string) (map[string]SecretFile, error) {
	files := make(map[string]SecretFile)
	for _, key := range secretKeys(settings) {
		file := SecretFile{key + "_FILE", environment[key+"_FILE"]}
		if !file.Set() || overridden(override, key) {
			continue
		}
		if environment[key] != "" {
			return nil, &SettingError{Key: file.key, Allowed: "a file if " + key + " is not set: unset one of them"}
		}
		if directory := os.Getenv("CREDENTIALS_DIRECTORY"); directory != "" && !strings.Contains(file.path, "/") {
			file.path = filepath.Join(directory, file.path) // of systemd, which has another one for each unit
		}
		secret, err := file.read()
		if err != nil {
			return nil, err
		}
		environment[key], files[key] = secret, file
	}
	return files, nil
}

func overridden(override []string, key string) bool {
	for _, o := range override {
		if strings.HasPrefix(o, key+"=") {
			return true
		}
	}
	return false
}

// secretKeys are the settings that can be given as files, unless the program has a setting of that name.
func secretKeys(settings any) (keys []string) {
	all := fields(reflect.TypeOf(settings).Elem())
	own := make(map[string]bool)
	for _, f := range all {
		own[f.key] = true
	}
	for _, f := range all {
		if f.secret && !own[f.key+"_FILE"] {
			keys = append(keys, f.key)
		}
	}
	return keys
}

// kept is a value that is reloaded for each use, because its files may be replaced while the program runs. If
// they cannot be used, the previous value stays in use.
type kept[T any] struct {
	what string // names the files, for the log
	load func() (T, error)
	log  zerolog.Logger

	mu      sync.Mutex
	value   T
	loaded  bool   // whether there is a value
	failure string // of the last load, so that it is logged once
}

func keep[T any](what string, log zerolog.Logger, load func() (T, error)) *kept[T] {
	k := &kept[T]{what: what, load: load, log: log}
	_, _ = k.get() // the next one returns the error
	return k
}

// get reloads the value. It fails only if no load has ever succeeded.
func (k *kept[T]) get() (T, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	value, err := k.load()
	if err == nil {
		k.value, k.loaded = value, true
	}
	switch {
	case !k.loaded:
		return k.value, err
	case err != nil && err.Error() != k.failure:
		k.failure = err.Error()
		k.log.Error().Err(err).Msg(k.what + " not read again: what was read before stays in use")
	case err == nil && k.failure != "":
		k.failure = ""
		k.log.Info().Msg(k.what + " read again")
	}
	return k.value, nil
}
