package setting

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// SecretFile is the file of a secret setting (its name with _FILE). The zero value means no file.
type SecretFile struct{ Key, Path string }

func (f SecretFile) Set() bool { return f.Path != "" }

// maxSecret bounds such a file in bytes. A URL of many servers is far below it.
const maxSecret = 64 << 10

// Read returns the file's content without trailing line ends. Errors do not quote it.
func (f SecretFile) Read() (string, error) {
	info, err := os.Stat(f.Path)
	var text []byte
	switch {
	case err == nil && !info.Mode().IsRegular():
		return "", f.Refuse("a regular file, because it is read again") // a pipe can be read once
	case err == nil && info.Size() > maxSecret:
		return "", f.Refuse(fmt.Sprintf("a file of at most %d bytes", maxSecret))
	case err == nil:
		text, err = os.ReadFile(f.Path)
	}
	if err != nil {
		var reason *fs.PathError
		if errors.As(err, &reason) {
			err = reason.Err // without the path
		}
		return "", f.Refuse(fmt.Sprintf("a file that can be read (%v)", err))
	}
	secret := strings.TrimRight(string(text), "\r\n")
	if secret == "" {
		return "", f.Refuse("a file that is not empty")
	}
	return secret, nil
}

// Refuse names the file, unless the name may be the secret itself.
func (f SecretFile) Refuse(allowed string) error {
	if _, err := os.Lstat(f.Path); err != nil && (!filepath.IsAbs(f.Path) || strings.Contains(f.Path, "://")) {
		return &Error{Key: f.Key, MustBe: allowed + "; its name is not shown, because it may be the secret itself: " +
			"write the whole path, from / on"}
	}
	return &Error{Key: f.Key, Value: f.Path, MustBe: allowed}
}

// readSecrets reads the files of the secret settings into the environment, and changes nothing else there. A
// setting given both ways is an error. overrides are not part of the environment, and win.
func readSecrets(settings any, environment map[string]string, override []string) (map[string]SecretFile, error) {
	files := make(map[string]SecretFile)
	for _, key := range SecretKeys(settings) {
		file := SecretFile{key + "_FILE", environment[key+"_FILE"]}
		if !file.Set() || isOverridden(override, key) {
			continue
		}
		if environment[key] != "" {
			return nil, &Error{Key: file.Key, MustBe: "unset if " + key + " is set"}
		}
		if directory := os.Getenv("CREDENTIALS_DIRECTORY"); directory != "" && !strings.Contains(file.Path, "/") {
			file.Path = filepath.Join(directory, file.Path) // of systemd, which has another one for each unit
		}
		secret, err := file.Read()
		if err != nil {
			return nil, err
		}
		environment[key], files[key] = secret, file
	}
	return files, nil
}

func isOverridden(override []string, key string) bool {
	return slices.ContainsFunc(override, func(o string) bool { return strings.HasPrefix(o, key+"=") })
}

// SecretKeys are the settings that can be given as files, unless the program has a setting of that name.
func SecretKeys(settings any) (keys []string) {
	all := Fields(settings)
	own := make(map[string]bool)
	for _, f := range all {
		own[f.Key] = true
	}
	for _, f := range all {
		if f.secret && !own[f.Key+"_FILE"] {
			keys = append(keys, f.Key)
		}
	}
	return keys
}

// Tokens are the bearer tokens of an HTTP API, kept as hashes only. The zero value requires none.
type Tokens struct{ hashes [][sha256.Size]byte }

func (t *Tokens) UnmarshalText(text []byte) error {
	t.hashes = nil
	for token := range strings.SplitSeq(string(text), ",") {
		token = strings.TrimSpace(token)
		if !isPlainToken(token) {
			return fmt.Errorf("comma-separated tokens, none of them empty, of visible ASCII characters without spaces")
		}
		t.hashes = append(t.hashes, sha256.Sum256([]byte(token)))
	}
	return nil
}

// isPlainToken reports whether an HTTP header can carry a token unchanged.
func isPlainToken(token string) bool {
	return token != "" && strings.IndexFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) < 0
}

func (t Tokens) Hashes() [][sha256.Size]byte { return t.hashes }
