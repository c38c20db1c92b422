package boot

import (
	"crypto/tls"
	"fmt"
)

// PEMFile is a setting that names a file.
type PEMFile struct{ Key, Path string }

// CheckKeyPair checks a certificate and its private key: both or neither must be
// given, and they must belong together.
func CheckKeyPair(cert, key PEMFile) error {
	if err := bothOrNeither(cert, key); err != nil || cert.Path == "" {
		return err
	}
	if _, err := tls.LoadX509KeyPair(cert.Path, key.Path); err != nil {
		return &SettingError{Key: cert.Key, Value: cert.Path, Allowed: fmt.Sprintf("a PEM certificate that belongs to the key in %s (%v)", key.Key, err)}
	}
	return nil
}

func bothOrNeither(cert, key PEMFile) error {
	switch {
	case cert.Path != "" && key.Path == "":
		return &SettingError{Key: cert.Key, Value: cert.Path, Allowed: "a PEM file together with " + key.Key}
	case cert.Path == "" && key.Path != "":
		return &SettingError{Key: key.Key, Value: key.Path, Allowed: "a PEM file together with " + cert.Key}
	}
	return nil
}
