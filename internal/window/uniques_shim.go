package window

import "strconv"

func (k keys) unique(shard int, t Tier, number int64, counter string) string {
	return k.namespace + ":{" + strconv.Itoa(shard) + "}:u:" + FormatDuration(t.Cell) + ":" + strconv.FormatInt(number, 10) + ":" + counter
}
