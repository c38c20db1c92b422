package unique

import (
	"encoding/binary"
	"math/bits"

	"github.com/cespare/xxhash/v2"
)

const (
	// Registers is how many registers a HyperLogLog of Redis has.
	Registers = 1 << indexBits
	// MaxRank is the largest rank of a register.
	MaxRank = hashBits + 1

	indexBits = 14
	hashBits  = 64 - indexBits // from which the rank is computed
)

// Register is a register's index and a rank that it has reached. The order is by index, then by rank.
type Register uint32

const rankBits = 6

// Of returns the register of a value.
func Of(value []byte) Register {
	hash := xxhash.Sum64(value)
	return newRegister(int(hash%Registers), 1+bits.TrailingZeros64(hash>>indexBits|1<<hashBits))
}

func newRegister(index, rank int) Register { return Register(index<<rankBits | rank) }

// Index returns the register's index, from 0 to Registers-1.
func (r Register) Index() int { return int(r >> rankBits) }

// Rank returns the rank, from 1 to MaxRank.
func (r Register) Rank() int { return int(r & (1<<rankBits - 1)) }

// ArgumentSize is the length of an Argument in bytes.
const ArgumentSize = 8

// Argument returns the argument of PFADD that updates the register to its rank: 8 bytes.
func (r Register) Argument() string { return string(r.AppendArgument(nil)) }

// AppendArgument appends the Argument.
func (r Register) AppendArgument(to []byte) []byte {
	hash := uint64(r.Index())
	if r.Rank() <= hashBits {
		hash |= 1 << (indexBits + r.Rank() - 1)
	} // or all 50 bits are 0
	return binary.LittleEndian.AppendUint64(to, unmurmur(hash))
}

// MurmurHash64A of 8 bytes multiplies by an odd number, and folds the upper bits of a number into the lower
// ones. Each of these steps can be undone.
const (
	murmurSeed    = 0xadc83b19 // Redis's
	murmurFactor  = 0xc6a4a7935bd1e995
	murmurShift   = 47
	murmurStart   = murmurSeed ^ 8*murmurFactor&(1<<64-1) // of a text of 8 bytes
	murmurInverse = 0x5f7a0ea7e59b19bd                    // murmurFactor times this is 1, modulo 2⁶⁴
)

// unmurmur undoes Redis's hash of a text of 8 bytes.
func unmurmur(hash uint64) (text uint64) {
	hash = fold(fold(hash)*murmurInverse) * murmurInverse
	return fold((hash^murmurStart)*murmurInverse) * murmurInverse
}

// fold undoes itself, because the shift is more than half of the bits.
func fold(x uint64) uint64 { return x ^ x>>murmurShift }
