-- Settles reservations, or renews them, all or none.
-- KEYS: per reservation the key of the take, those of its limit's reservations, then those of the ids, as in
-- decide.
-- ARGV: settle, or renew; then per reservation policy, window (ms), n (its hits; or its new length, ms), id,
-- how long it counts after its end (ms), and what becomes of one that is unknown (0: nothing; 1: it is
-- settled; 2: it was settled with nothing).
-- Returns per reservation: what became of it (0: unknown; 1: done; 2: done before; 3: it was settled with
-- other hits; 4: it has ended); the estimate of the hits in the window, with those reserved, afterwards; the
-- hits it was settled with; and its end (ms).
local time = redis.call('TIME')
local clock = time[1] * 1000 + math.floor(time[2] / 1000)
local renews, all, states, takes = ARGV[1] == 'renew', true, {}, #KEYS / 3
for i = 1, takes do
	local a = 6 * i - 4
	local n = tonumber(ARGV[a + 2])
	local s = policies[ARGV[a]].look(KEYS[i], clock, tonumber(ARGV[a + 1]), '')
	s.policy, s.ahead, s.n, s.id, s.after = policies[ARGV[a]], s.now - clock, n, ARGV[a + 3], tonumber(ARGV[a + 4])
	s.reservations = reservations.look(KEYS[takes + i], clock)
	s.record = ids.read(KEYS[2 * takes + i])
	local record = s.record
	if not record or record.kind == 't' then
		s.result = record and 0 or tonumber(ARGV[a + 5])
		s.result = renews and s.result == 1 and 0 or s.result -- there is nothing to renew
		s.record = {n = n, last = clock}
	elseif record.kind == 's' then
		s.result = (renews or record.settled ~= n) and 3 or 2
	elseif record.last <= clock then
		s.result = 4
	elseif renews and not reservations.has(KEYS[takes + i], s.id, record.n) then
		s.result = 0
	else
		s.result = 1
	end
	all = all and (s.result == 1 or s.result == 2)
	states[i] = s
end
local out = {}
for i, s in ipairs(states) do
	local record, settled = s.record, s.record.settled or 0
	local change = 0 -- of the hits that count
	if all and s.result == 1 and renews then
		record.last = clock + s.n
		reservations.extend(KEYS[takes + i], clock, s.id, record.n, record.last + s.after)
		ids.reserve(KEYS[2 * takes + i], clock, record.n, record.last, record.last + s.after)
	elseif all and s.result == 1 then
		settled, change = s.n, s.n - reservations.remove(KEYS[takes + i], s.id, record.n)
		if s.n > 0 then
			s.policy.add(KEYS[i], s, s.n)
		end
		ids.settle(KEYS[2 * takes + i], record, s.n)
	end
	out[i] = {s.result, s.count + s.reservations.sum + change, settled, record.last}
end
return out
