-- Does what the eraser's transaction does (shardEraser.exec), in the same order.
-- KEYS: the last erasure; the streams' cursors; the keys of each counter; the sets of names; the summaries.
-- ARGV: how many cursors, counters, keys of each, sets and summaries there are; the last erasure and the new
-- one; how many fields of a cursor are compared, these, and their values per cursor; the names; and the text
-- of each summary with its expiry.
-- Returns how many counters had anything, or -1 if a cursor or the last erasure has changed.
local key, at = 0, 0
local function nextKey() key = key + 1 return KEYS[key] end
local function arg() at = at + 1 return ARGV[at] end
local function number() return tonumber(arg()) end
local cursors, counters, each, sets, summaries = number(), number(), number(), number(), number()
local erasure, opened, fields = nextKey(), {}, {}
if (redis.call('GET', erasure) or '') ~= arg() then return -1 end
local erased = arg()
for i = 1, number() do fields[i] = arg() end
for _ = 1, cursors do
	local cursor, exists = nextKey(), false
	for _, value in ipairs(redis.call('HMGET', cursor, unpack(fields))) do
		exists = exists or value
		if (value or '') ~= arg() then return -1 end
	end
	if exists then opened[#opened + 1] = cursor end
end
-- This removes nothing. A full Redis refuses it as little as anything after the first write of a script.
redis.pcall('HDEL', erasure, '')
redis.call('SET', erasure, erased)
for _, cursor in ipairs(opened) do redis.call('HINCRBY', cursor, 'opened', 1) end
local had, names = 0, {}
for i = 1, counters do
	local removed = 0
	for from = 1, each, 1000 do
		removed = removed + redis.call('UNLINK', unpack(KEYS, key + from, key + math.min(each, from + 999)))
	end
	key, had, names[i] = key + each, had + math.min(removed, 1), arg()
end
for _ = 1, sets do redis.pcall('ZREM', nextKey(), unpack(names)) end -- another program may have written it
for _ = 1, summaries do redis.call('SET', nextKey(), arg(), 'EXAT', arg()) end
for _, cursor in ipairs(opened) do redis.call('HINCRBY', cursor, 'closed', 1) end
return had
