// Package unique is the arithmetic of counting different values: how a value becomes a register of a HyperLogLog, which
// argument of Redis's PFADD raises exactly that register, what a HyperLogLog that Redis keeps holds, and how many
// different values it stands for.
//
// # What it promises
//
// It is pure: no clock, no server. The same value always becomes the same Register. Redis's PFADD of a register's
// Argument raises that register to that rank, if it is lower, and no other. So the registers of a key in Redis are
// those of the Sketch to which the same values were added, whatever was sent twice, in whichever order and in however
// many commands.
//
// # A register
//
// A value is hashed by xxhash64 without a key. The lower 14 bits choose one of 16,384 registers. The rank is one more
// than the number of zeros below the lowest one of the other 50 bits, 51 if there is none. Each register keeps the
// largest rank (P. Flajolet and others, HyperLogLog, AofA 2007). Because the hash has no key, whoever chooses the
// values can make a counter show far too many or too few different ones; it shows nothing about single values that
// Redis's own hash would not show, too.
//
// # Why not the value itself
//
// Redis hashes an argument of PFADD by MurmurHash64A, which can be undone for arguments of 8 bytes. So Argument is the 8
// bytes that Redis hashes to the register and rank, and to zeros in all other bits. Then Redis, its append-only file and
// its slow log see nothing of a value that the HyperLogLog does not keep; values that raise the same register are one
// argument; and whoever sends it knows which register of the key is how high.
//
// # What can go wrong
//
// Nothing in here but Decode, which fails if a text is not what PFADD writes. A server that only looks like Redis must
// use its hash and its registers, or estimates are wrong: Valkey does; miniredis, the stand-in of cmd/dev, does not.
package unique
