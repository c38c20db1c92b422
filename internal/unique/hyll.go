package unique

import (
	"errors"
	"fmt"
)

// headerSize is how many bytes come before the registers.
const headerSize = 16

// Redis's HyperLogLog is a STRING: "HYLL", a byte for the encoding, three unused ones, and eight in which
// PFCOUNT caches its last result.
const (
	magic     = "HYLL"
	dense     = 0 // six bits per register, the lowest of a byte first
	sparse    = 1 // runs, see decodeSparse
	denseSize = headerSize + Registers*rankBits/8
)

// ErrNotHYLL means that a text is not a HyperLogLog of Redis.
var ErrNotHYLL = errors.New("not a Redis HyperLogLog")

// checkHeader returns ErrNotHYLL unless PFADD accepts the first headerSize bytes of a text, in an encoding
// that Decode reads.
func checkHeader(text string) error {
	if len(text) < headerSize || text[:len(magic)] != magic {
		return ErrNotHYLL
	}
	// https://github.com/redis/redis/pull/15307 adds an encoding, which is off by default.
	if encoding := text[len(magic)]; encoding > sparse {
		return fmt.Errorf("%w: its encoding %d is unknown: if the server has the setting hll-dense-encoding, set it "+
			"to classic", ErrNotHYLL, encoding)
	}
	return nil
}

// Decode reads the registers of a HyperLogLog as GET returns it. Errors are ErrNotHYLL.
func Decode(text string) (*Sketch, error) {
	if err := checkHeader(text); err != nil {
		return nil, err
	}
	if text[len(magic)] == sparse {
		return decodeSparse(text[headerSize:])
	}
	if len(text) != denseSize {
		return nil, fmt.Errorf("%w: %d bytes in place of %d", ErrNotHYLL, len(text), denseSize)
	}
	s := new(Sketch)
	s.makeDense()
	body := text[headerSize:]
	for i := range Registers {
		bit := i * rankBits
		pair := uint(body[bit/8])
		if next := bit/8 + 1; next < len(body) {
			pair |= uint(body[next]) << 8
		}
		if rank := pair >> (bit % 8) % (1 << rankBits); rank > 0 {
			s.update(newRegister(i, int(rank)))
		}
	}
	return s, nil
}

// decodeSparse reads runs of equal registers:
//
//	00llllll            l+1 registers that are 0
//	01llllll llllllll   as many, with 14 bits for l
//	1rrrrrll            l+1 registers of rank r+1
func decodeSparse(body string) (*Sketch, error) {
	s, index := new(Sketch), 0
	for i := 0; i < len(body); i++ {
		switch op := int(body[i]); {
		case op < 0x40:
			index += op + 1
		case op < 0x80:
			if i++; i == len(body) {
				return nil, fmt.Errorf("%w: its last run is cut", ErrNotHYLL)
			}
			index += (op&0x3f)<<8 + int(body[i]) + 1
		default:
			for range op&3 + 1 {
				if index < Registers {
					s.Add(newRegister(index, op>>2&0x1f+1))
				}
				index++
			}
		}
		if index > Registers {
			break
		}
	}
	if index != Registers {
		return nil, fmt.Errorf("%w: other than %d registers", ErrNotHYLL, Registers)
	}
	return s, nil
}
