package boot

import (
	"fmt"
	"strings"
	"testing"
)

// Who puts the content of a secret file where its name should be is not told the content again.
func TestContentsAreConcealed(t *testing.T) {
	for _, content := range []string{
		"SUAMHUNTER2ABCDEFGHIJKLMNOPQRSTUVWXYZ234567ABCDEFGHIJKLMNO", "eyJhunter2", "-----BEGIN NATS USER JWT-----\nhunter2", "-----BEGIN PRIVATE KEY----- hunter2", "hunter2\nx",
		"tokens: [{name: a, token: hunter2}]", "{name: a, token: hunter2}", "name: a, sha256: hunter2",
	} {
		for _, err := range []error{
			&SettingError{Key: "NATS_NKEY", Value: content, Allowed: fmt.Sprintf("a file that can be read (open %s: no such file)", content)},
			fmt.Errorf("COLLECT_TOKENS_FILE: %s", Conceal(content, "open "+content+": no such file")),
		} {
			text := err.Error()
			if strings.Contains(strings.ToLower(text), "hunter2") || !strings.Contains(text, "no such file") || !strings.Contains(text, "the content of such a file") {
				t.Errorf("%q: %s", content, text)
			}
		}
	}
	for _, path := range []string{"/etc/tokens.yml", "tokens.yaml", `C:\tokens`, "user.creds", "SHORT", "./a b/c", "key.pem"} {
		text := (&SettingError{Key: "NATS_NKEY", Value: path, Allowed: "a file that can be read (open " + path + ": no such file)"}).Error()
		if !strings.Contains(text, fmt.Sprintf("NATS_NKEY=%q", path)) || !strings.Contains(text, "open "+path+": ") {
			t.Errorf("%s: %s", path, text)
		}
	}
}
