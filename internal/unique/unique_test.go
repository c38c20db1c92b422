package unique

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"tallyroll/tests/stack"
)

// TestArgumentOfPFADDRaisesItsRegister: what PFADD is given raises exactly the register that is meant, of all
// indexes and ranks.
func TestArgumentOfPFADDRaisesItsRegister(t *testing.T) {
	t.Parallel()
	client := stack.Redis(t).Client()
	ctx := t.Context()
	for rank := 1; rank <= MaxRank; rank++ {
		var args []any
		var want Sketch
		for index := rank % 7; index < Registers; index += 1 + rank*5 {
			r := newRegister(index, rank)
			args = append(args, r.Argument())
			want.Add(r)
		}
		key := fmt.Sprint("rank", rank)
		require.NoError(t, client.PFAdd(ctx, key, args...).Err())
		text := client.Get(ctx, key).Val()
		got, err := Decode(text)
		if err != nil || !got.Equal(&want) {
			t.Fatalf("rank %d: Redis holds %d registers, want %d (%v)", rank, got.Len(), want.Len(), err)
		}
		if n := client.PFCount(ctx, key).Val(); math.Abs(got.Estimate()-float64(n)) > 0.5001 {
			t.Fatalf("rank %d: estimate %v, Redis says %d", rank, got.Estimate(), n)
		}
	}
}

// TestRedisHoldsTheSketch: values in any order and number of commands, sent more than once, by several
// writers that know some of the registers: Redis holds the registers of the values, and counts as Estimate
// does.
func TestRedisHoldsTheSketch(t *testing.T) {
	t.Parallel()
	client := stack.Redis(t).Client()
	ctx := t.Context()
	nth := 0
	rapid.Check(t, func(t *rapid.T) {
		nth++
		key := fmt.Sprint("key", nth)
		var want Sketch
		from := rapid.IntRange(0, 1<<40).Draw(t, "from")
		for range rapid.IntRange(1, 4).Draw(t, "writers") {
			var known Sketch
			for range rapid.IntRange(1, 4).Draw(t, "commits") {
				var load Sketch
				at := from + rapid.IntRange(0, 3000).Draw(t, "at")
				for i := range rapid.SampledFrom([]int{1, 2, 3, 30, 300, 3000, 8000}).Draw(t, "values") {
					r := Of([]byte(fmt.Sprint("visitor-", at+i)))
					load.Add(r)
					want.Add(r)
				}
				args := make([]any, 0, load.Len())
				for _, r := range load.AppendAbove(nil, &known) {
					args = append(args, r.Argument())
				}
				if len(args) == 0 {
					continue
				}
				require.NoError(t, client.PFAdd(ctx, key, args...).Err())
				known.Merge(&load)
			}
		}
		got, err := Decode(client.Get(ctx, key).Val())
		if err != nil || !got.Equal(&want) {
			t.Fatalf("Redis holds %d registers, want %d (%v)", got.Len(), want.Len(), err)
		}
		if n := client.PFCount(ctx, key).Val(); math.Abs(want.Estimate()-float64(n)) > 0.5001 {
			t.Fatalf("estimate %v, Redis says %d", want.Estimate(), n)
		}
	})
}

func TestMurmurIsInverted(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.Uint64().Draw(t, "x")
		if got := murmur(unmurmur(x)); got != x {
			t.Fatalf("%x became %x", x, got)
		}
		r := newRegister(rapid.IntRange(0, Registers-1).Draw(t, "index"), rapid.IntRange(1, MaxRank).Draw(t, "rank"))
		hash := murmur(binary.LittleEndian.Uint64(r.AppendArgument(nil)))
		if got := newRegister(int(hash%Registers), 1+bits.TrailingZeros64(hash>>indexBits|1<<hashBits)); got != r {
			t.Fatalf("register %d rank %d became %d rank %d", r.Index(), r.Rank(), got.Index(), got.Rank())
		}
	})
}

// TestSketchAgainstAMap: a sketch holds the largest rank of each register, whatever it is made of.
func TestSketchAgainstAMap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string) (*Sketch, map[int]int) {
			s, m := new(Sketch), map[int]int{}
			n := rapid.SampledFrom([]int{0, 1, 5, 100, 5000, 40_000}).Draw(t, name)
			spread := rapid.SampledFrom([]uint64{3, 1000, Registers}).Draw(t, name+" spread")
			seed := rapid.Uint64().Draw(t, name+" seed")
			for range n {
				seed = seed*6364136223846793005 + 1442695040888963407
				r := newRegister(int(seed>>33%spread), 1+bits.TrailingZeros64(seed>>17|1<<50))
				s.Add(r)
				m[r.Index()] = max(m[r.Index()], r.Rank())
			}
			return s, m
		}
		check := func(s *Sketch, m map[int]int) {
			seen, before := 0, Register(0)
			for r := range s.All() {
				if m[r.Index()] != r.Rank() || seen > 0 && r.Index() <= before.Index() {
					t.Fatalf("register %d has rank %d, want %d, after %d", r.Index(), r.Rank(), m[r.Index()], before.Index())
				}
				seen, before = seen+1, r
			}
			if seen != len(m) || s.Len() != len(m) {
				t.Fatalf("%d registers, Len %d, want %d", seen, s.Len(), len(m))
			}
			if s.Bytes() > Registers {
				t.Fatalf("%d bytes", s.Bytes())
			}
		}
		a, inA := draw("a")
		b, inB := draw("b")
		check(a, inA)
		var above []Register
		for index, rank := range inA {
			if rank > inB[index] {
				above = append(above, newRegister(index, rank))
			}
		}
		slices.Sort(above)
		if got := a.AppendAbove(nil, b); !slices.Equal(got, above) {
			t.Fatalf("%d registers are above, want %d", len(got), len(above))
		}
		a.Merge(b)
		for index, rank := range inB {
			inA[index] = max(inA[index], rank)
		}
		check(a, inA)
		check(b, inB)
	})
}

// TestErrorOfTheEstimate: the relative error of estimates is what the formula promises.
func TestErrorOfTheEstimate(t *testing.T) {
	t.Parallel()
	for _, n := range []int{10, 1000, 30_000} {
		sum := 0.0
		const rounds = 30
		for round := range rounds {
			var s Sketch
			for i := range n {
				s.Add(Of(fmt.Appendf(nil, "%d/%d", round, i)))
			}
			off := s.Estimate()/float64(n) - 1
			sum += off * off
		}
		if got := math.Sqrt(sum / rounds); got > 0.0081*1.5 { // 1.5: nearly four of its own standard errors
			t.Errorf("%d values: root mean square error %.4f", n, got)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("HYLL\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x7f\xff")
	f.Add("HYLL\x00")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Decode(text)
		if err == nil && s.Len() > Registers {
			t.Fatal("too many registers")
		}
	})
}

// murmur is Redis's hash of a text of 8 bytes.
func murmur(text uint64) uint64 {
	hash := uint64(murmurStart) ^ fold(text*murmurFactor)*murmurFactor
	return fold(fold(hash*murmurFactor) * murmurFactor)
}
