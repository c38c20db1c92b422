package boot

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"github.com/nats-io/nats.go"
)

// checkFiles reads the files of completed settings as the library will for a connection. Every connection reads
// them again, so if somebody renews the credentials in them, the next connection uses the new ones. An NKey is
// the identity itself, so its file must keep the same seed.
func (n NATSAccess) checkFiles(refuse func(field, path, allowed string) error) error {
	for _, file := range []struct {
		field, path, what, of string
		use                   func() error
	}{
		{"CREDS", n.Creds, "a credentials file", "a credentials file: a user's JWT and its seed", n.checkCreds},
		{"NKEY", n.NKey, "a file", "a file with the seed of a user's NKey", n.checkNKey},
		{"CA", n.CA, "a PEM file", "a PEM file of certificates", func() error { return nats.RootCAs(n.CA)(&nats.Options{}) }},
		{"KEY", n.Key, "a PEM file", "", func() error { return nil }}, // read with CERT
		{"CERT", n.Cert, "a PEM file", "a PEM certificate that belongs to the key in NATS_KEY", func() error { return nats.ClientCert(n.Cert, n.Key)(&nats.Options{}) }},
	} {
		if file.path == "" {
			continue
		}
		if err := readable(file.path); err != nil {
			return refuse(file.field, file.path, fmt.Sprintf("%s that can be read (%v)", file.what, err))
		}
		if err := file.use(); err != nil {
			return refuse(file.field, file.path, fmt.Sprintf("%s (%v)", file.of, err))
		}
	}
	return nil
}

// checkCreds reads the file as the library will for a connection.
func (n NATSAccess) checkCreds() error {
	var o nats.Options
	if err := nats.UserCredentials(n.Creds)(&o); err != nil {
		return err
	}
	if _, err := o.UserJWT(); err != nil {
		return err
	}
	_, err := o.SignatureCB(nil)
	return err
}

// checkNKey reads the seed. The library's error for other text says only that there is none.
func (n NATSAccess) checkNKey() error {
	option, err := nats.NkeyOptionFromSeed(n.NKey)
	if err != nil {
		return errors.New("it holds no such seed")
	}
	return option(&nats.Options{})
}

// readable opens a file, because a directory or a file without read permission is as bad as none.
func readable(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.IsDir() {
		return cmp.Or(err, fmt.Errorf("%s is a directory", path))
	}
	return nil
}
