package limit

import (
	"context"
	"fmt"

	"github.com/redis/go-redis/v9"
)

// heldClock begins scripts whose Redis has a clock that tests set: the key clock{tag}. PEXPIRE notes the
// moment in the hash expires{tag}. A key that has expired by that clock is removed before a script looks
// at it, as Redis does it.
const heldClock = `
local server, tag = redis, string.match(KEYS[1], '{%d+}')
local held, expires = tonumber(redis.call('GET', 'clock' .. tag)), 'expires' .. tag
for _, key in ipairs(KEYS) do
	local at = server.call('HGET', expires, key)
	if at and held > tonumber(at) then
		server.call('DEL', key)
	end
end
local redis = {pcall = redis.pcall}
function redis.call(name, key, ...)
	if name == 'TIME' then
		return {math.floor(held / 1000), held % 1000 * 1000}
	elseif name == 'PEXPIRE' then
		return server.call('HSET', expires, key, string.format('%.0f', held + ...))
	end
	return server.call(name, key, ...)
end
`

// The scripts of most tests give back and remove in steps of a few hits.
var heldScripts, heldWhole = newScripts(heldClock, 3), newScripts(heldClock, 1_000_000)

// setClock sets the clock of the keys with a tag; pipe may be a client or a pipeline.
func setClock(ctx context.Context, pipe redis.Cmdable, tag uint64, unixMilli int64) *redis.StatusCmd {
	return pipe.Set(ctx, fmt.Sprintf("clock{%d}", tag), unixMilli, 0)
}
