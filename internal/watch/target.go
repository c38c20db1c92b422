package watch

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"tallyroll/internal/hit"
	"tallyroll/internal/platform/release"
	"tallyroll/internal/watch/history"
)

// maxConcurrent bounds a target's concurrent first attempts and, separately, its retries.
const maxConcurrent = 8

// targetKind is a kind of target.
type targetKind struct {
	field    string // of form.Target, which has the address
	isValid  func(address string) bool
	must     string // what a valid address must be
	isSigned bool   // by SecretFile
	// newNotifier returns what delivers changes to a target. Without it, every process posts what fires, as
	// Alertmanager expects.
	newNotifier func(t *Target, js jetstream.JetStream) notifier
}

// targetKinds are all kinds, in the order of form.Target. A new one is a choice there, and its entry here.
var targetKinds = []*targetKind{
	{field: "webhook", isValid: isURL, must: "be " + urlHint, isSigned: true,
		newNotifier: func(t *Target, _ jetstream.JetStream) notifier {
			return &webhook{url: t.Address, secretFile: t.SecretFile, client: newClient()}
		}},
	{field: "webhook_file", isValid: isFile, must: "name a file, not hold the URL", isSigned: true,
		newNotifier: func(t *Target, _ jetstream.JetStream) notifier {
			return &webhook{urlFile: t.Address, secretFile: t.SecretFile, client: newClient()}
		}},
	{field: "alertmanager", isValid: isURL, must: "be " + urlHint},
	{field: "nats", isValid: isSubject,
		must: "be a subject without wildcards that does not begin with " + history.SubjectPrefix +
			" or $, such as tallyroll.alert",
		newNotifier: func(t *Target, js jetstream.JetStream) notifier { return &natsPublisher{js, t.Address} }},
}

const urlHint = "a URL that begins with http:// or https://, such as https://example.org/hook"

func isURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.Fragment == ""
}

func isFile(text string) bool { return !strings.Contains(text, "://") }

func isSubject(text string) bool {
	return hit.ValidSubject(text) && !strings.ContainsAny(text, "*>") &&
		!strings.HasPrefix(text, history.SubjectPrefix) && !strings.HasPrefix(text, "$")
}

// targetFields lists the fields that kinds have, for errors.
func targetFields() string {
	fields := make([]string, len(targetKinds))
	for i, kind := range targetKinds {
		fields[i] = kind.field
	}
	return strings.Join(fields, ", ")
}

// newNotifier returns nil if the target receives what fires, and not changes.
func (t *Target) newNotifier(js jetstream.JetStream) notifier {
	if t.kind.newNotifier == nil {
		return nil
	}
	return t.kind.newNotifier(t, js)
}

type notification struct {
	id string
	history.KeyState
}

func (n notification) body() []byte {
	data, err := json.Marshal(struct {
		ID string `json:"id"`
		history.KeyState
	}{n.id, n.KeyState})
	if err != nil {
		panic("a notification cannot be encoded: " + err.Error()) // it has only texts, numbers and times
	}
	return data
}

type notifier interface {
	notify(ctx context.Context, n notification) error
}

// statusError is a target's answer other than 2xx. It quotes nothing that the target wrote, because that may
// contain the URL, which may be a secret.
type statusError struct {
	code       int
	retryAfter time.Duration // the target's Retry-After; 0: none
}

func (e *statusError) Error() string {
	text := strconv.Itoa(e.code) + " " + http.StatusText(e.code)
	switch {
	case e.code/100 == 3:
		text += ": redirects are not followed"
	case e.code == http.StatusGone:
		text += ": the target wants no more of them"
	}
	return text
}

// isRefusal reports whether the target refuses the change itself, so that a retry is unlikely to help.
func (e *statusError) isRefusal() bool {
	return slices.Contains([]int{
		http.StatusBadRequest, http.StatusForbidden, http.StatusNotFound, http.StatusRequestEntityTooLarge,
		http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity,
	}, e.code)
}

// newClient returns a client that follows no redirect: a change goes only where the file says.
func newClient() *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 2 * maxConcurrent
	return &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
}

// sendRequest sends a request, and returns an error unless the answer is 2xx. The error quotes neither the
// URL, which may hold a secret, nor the answer, which may quote the URL in any encoding.
func sendRequest(client *http.Client, r *http.Request, now time.Time) error {
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("User-Agent", "tallyroll-watch/"+release.Version())
	resp, err := client.Do(r)
	if err != nil {
		var urlError *url.Error
		if errors.As(err, &urlError) {
			err = urlError.Err
		}
		return redactError(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // so that the connection is reused
	if resp.StatusCode/100 == 2 {
		return nil
	}
	return &statusError{resp.StatusCode, parseRetryAfter(resp.Header.Get("Retry-After"), now)}
}

// redactError passes network and TLS errors. Other errors of net/http may quote a status line or a URL.
func redactError(err error) error {
	var network net.Error
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &network) || errors.As(err, &certificate) || errors.Is(err, context.Canceled) {
		return err
	}
	return errors.New("the answer is not HTTP")
}

// parseRetryAfter parses seconds or a date (RFC 9110, 10.2.3); 0 if it is neither.
func parseRetryAfter(text string, now time.Time) time.Duration {
	if seconds, err := strconv.ParseInt(text, 10, 32); err == nil {
		return max(0, time.Duration(seconds)*time.Second)
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}

// webhook posts changes to a URL, signed as in Standard Webhooks. It reads the files for each attempt.
type webhook struct {
	url, urlFile, secretFile string
	client                   *http.Client
}

// readURL returns the URL. No error quotes it.
func (w *webhook) readURL() (string, error) {
	if w.urlFile == "" {
		return w.url, nil
	}
	text, err := os.ReadFile(w.urlFile)
	if err != nil {
		return "", fmt.Errorf("webhook_file cannot be read: %w", err)
	}
	address := strings.TrimSpace(string(text))
	if !isURL(address) {
		return "", fmt.Errorf("webhook_file %s has no URL: must hold %s, and nothing else", w.urlFile, urlHint)
	}
	return address, nil
}

// checkFiles returns why a change could not be sent.
func (w *webhook) checkFiles() error {
	_, err := w.readURL()
	if err == nil && w.secretFile != "" {
		_, err = signBody(w.secretFile, "", time.Now(), nil)
	}
	return err
}

func (w *webhook) notify(ctx context.Context, n notification) error {
	body := n.body()
	now := time.Now()
	address, err := w.readURL()
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return errors.New("the URL is invalid")
	}
	r.Header.Set("Webhook-Id", n.id)
	r.Header.Set("Webhook-Timestamp", strconv.FormatInt(now.Unix(), 10))
	if w.secretFile != "" {
		signature, err := signBody(w.secretFile, n.id, now, body)
		if err != nil {
			return err
		}
		r.Header.Set("Webhook-Signature", signature)
	}
	return sendRequest(w.client, r, now)
}

const maxSecrets = 8

// signBody signs with each secret of the file, which it rereads, so that receivers can rotate them.
func signBody(file, id string, now time.Time, body []byte) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("secret_file cannot be read: %w", err)
	}
	secrets := strings.Fields(string(text))
	if len(secrets) == 0 || len(secrets) > maxSecrets {
		return "", fmt.Errorf("secret_file %s has %d secrets: must have 1 to %d, each on a line", file, len(secrets),
			maxSecrets)
	}
	signatures := make([]string, len(secrets))
	for i, secret := range secrets {
		key, err := standardwebhooks.NewWebhook(secret)
		if err != nil || strings.TrimPrefix(secret, secretPrefix) == "" {
			return "", fmt.Errorf("secret_file %s: the secret on line %d is not %s followed by base64", file, i+1,
				secretPrefix)
		}
		if signatures[i], err = key.Sign(id, now, body); err != nil {
			return "", err
		}
	}
	return strings.Join(signatures, " "), nil
}

// natsPublisher publishes changes to a subject of NATS. If a stream has the subject, it must store the
// change; otherwise delivery is at most once, to current subscribers.
type natsPublisher struct {
	js      jetstream.JetStream
	subject string
}

func (p *natsPublisher) notify(ctx context.Context, n notification) error {
	m := nats.NewMsg(p.subject)
	m.Data = n.body()
	m.Header.Set(jetstream.MsgIDHeader, n.id)
	_, err := p.js.StreamNameBySubject(ctx, p.subject)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if err := p.js.Conn().PublishMsg(m); err != nil {
			return err
		}
		return p.js.Conn().FlushWithContext(ctx)
	}
	if err != nil {
		return fmt.Errorf("find the stream of %s: %w", p.subject, err)
	}
	_, err = p.js.PublishMsg(ctx, m)
	return err
}
