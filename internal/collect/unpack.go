package collect

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"tallyroll/internal/web"
)

// encoding is how a body is packed.
type encoding string

const (
	plain    encoding = ""
	gzipped  encoding = "gzip"
	zstdized encoding = "zstd"
)

// encodingOf reads Content-Encoding.
func encodingOf(r *http.Request) (encoding, *web.Problem) {
	values := r.Header["Content-Encoding"]
	if len(values) == 0 {
		return plain, nil
	}
	switch given := strings.ToLower(strings.TrimSpace(strings.Join(values, ","))); given {
	case "", "identity":
		return plain, nil
	case "gzip", "x-gzip":
		return gzipped, nil
	case "zstd":
		return zstdized, nil
	default:
		return plain, web.NewProblem(http.StatusUnsupportedMediaType,
			fmt.Sprintf("Content-Encoding %s is not taken: allowed are gzip, zstd and none", web.Excerpt(given))).With("Accept-Encoding", "gzip, zstd")
	}
}

// unpacker unpacks whole bodies. They are in memory by then, so no client can hold an unpacker up.
type unpacker struct{ zstd *zstd.Decoder }

func newUnpacker(maxBody int64) (*unpacker, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxMemory(uint64(maxBody)+1))
	return &unpacker{d}, err
}

// unpack unpacks a body. held holds the packed bytes, and then the unpacked ones too.
func (u *unpacker) unpack(how encoding, packed []byte, most int64, held *hold) ([]byte, error) {
	if how == gzipped {
		r, err := gzip.NewReader(bytes.NewReader(packed))
		if err != nil {
			return nil, errPacked{how, err}
		}
		more := &hold{gate: held.gate}
		out, err := fill(r, nil, most, more)
		held.n += more.n
		if err != nil && !errors.Is(err, errLarge) && !errors.Is(err, errNoRoom) {
			return nil, errPacked{how, err}
		}
		return out, err
	}
	if !held.resize(cap(packed) + int(most) + freeBytes) {
		return nil, errNoRoom
	}
	out, err := u.zstd.DecodeAll(packed, nil)
	switch {
	case errors.Is(err, zstd.ErrDecoderSizeExceeded), errors.Is(err, zstd.ErrWindowSizeExceeded), int64(len(out)) > most:
		return nil, errLarge
	case err != nil:
		return nil, errPacked{how, err}
	}
	held.resize(cap(packed) + cap(out)) // it only gives back
	return out, nil
}

// errPacked says that a body is not what Content-Encoding says.
type errPacked struct {
	how encoding
	err error
}

func (e errPacked) Error() string {
	return fmt.Sprintf("body: it is not %s, as Content-Encoding says (%v)", e.how, e.err)
}
