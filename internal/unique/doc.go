// Package unique is the arithmetic of counting unique values: the register of a HyperLogLog that a value
// updates, the argument of Redis's PFADD that updates exactly that register, and the estimate of a
// HyperLogLog from Redis.
//
// It is pure. The same value always becomes the same Register. PFADD of a register's Argument updates that
// register to that rank, if it is lower, and no other. So a key's registers are those of the Sketch to which
// the same values were added, in any order and in any number of commands, even if some were sent twice.
//
// A value is hashed by xxhash64 without a key. The lower 14 bits choose one of 16,384 registers. The rank is
// one more than the number of zeros below the lowest 1 of the other 50 bits, or 51 if all are 0. Each
// register keeps the largest rank (P. Flajolet and others, HyperLogLog, AofA 2007). Because the hash has no
// key, the author of the values can make a counter show far too many or too few. It reveals no more about
// single values than Redis's own hash would.
//
// Redis hashes an argument of PFADD by MurmurHash64A, which can be inverted for 8 bytes. So Argument is the 8
// bytes that Redis hashes to the register and rank, and to zeros in all other bits. Then Redis, its
// append-only file and its slow log contain nothing of a value that the HyperLogLog does not keep, values of
// one register are one argument, and the sender knows the key's registers.
//
// Only Decode fails, on text that PFADD did not write. A server that imitates Redis must use the same hash
// and registers, or estimates are wrong: Valkey does; miniredis, the stand-in of cmd/dev, does not.
package unique
