//! The mapper: (map, rule, input, device weights) → devices.
//!
//! Bit-exact with Ceph's mapper since Jewel, all older behaviours included, as the map's
//! tunables ask. 32-bit arithmetic wraps where C's does. What would be undefined or endless
//! there is defined here: a bucket that does not exist is a bad item, a descent longer than
//! the number of buckets is a cycle, and a whole mapping may draw at most
//! [`Scratch::DRAWS_MAX`] items, after which the rest stays unplaced.
//! No memory is taken while choosing, except once per bucket that needs a permutation.

use crate::hash::{RJENKINS1, hash32_2, hash32_3, hash32_4};
use crate::ln::negative_ln;
use crate::map::{Bucket, BucketData, ChooseArg, ChooseArgs, CrushMap, step_op};

/// A hole: no device for this position.
pub const ITEM_NONE: i32 = 0x7fff_ffff;
/// Items hashed at a time.
const LANES: usize = 4;
/// Not decided yet.
const ITEM_UNDEF: i32 = 0x7fff_fffe;

/// Memory a mapping works in; reuse it to map many inputs without allocating.
#[derive(Debug)]
pub struct Scratch {
    from: Vec<i32>,
    to: Vec<i32>,
    leaves: Vec<i32>,
    perms: Vec<Perm>,
    generation: u64,
    draws_max: u64,
}

impl Default for Scratch {
    fn default() -> Self {
        Self::with_draws(Self::DRAWS_MAX)
    }
}

/// The beginning of a random permutation of a bucket's positions.
#[derive(Debug, Default)]
struct Perm {
    generation: u64,
    /// Positions decided.
    done: usize,
    order: Vec<u32>,
}

impl Scratch {
    /// Items one mapping may draw in total. Far above what sane maps need (a thousand
    /// drawings of a ten-thousand-item bucket); bounds the time a malformed one can take.
    pub const DRAWS_MAX: u64 = 1 << 21;

    /// Empty scratch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Empty scratch for mappings of at most `draws_max` drawn items each.
    pub fn with_draws(draws_max: u64) -> Self {
        let (from, to, leaves, perms) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { from, to, leaves, perms, generation: 0, draws_max }
    }
}

/// What stays the same during one choose step.
struct Step<'a> {
    map: &'a CrushMap,
    args: Option<&'a ChooseArgs>,
    weights: &'a [u32],
    x: u32,
    local_retries: u32,
    local_fallback_retries: u32,
    vary_r: u32,
    stable: bool,
}

/// What changes while choosing, besides the output.
struct Work<'a> {
    perms: &'a mut Vec<Perm>,
    generation: u64,
    draws_left: u64,
}

/// One call of a choose function.
#[derive(Clone, Copy)]
struct Call {
    numrep: i32,
    kind: i32,
    tries: u32,
    /// `Some(tries)` to go on to a device under each item.
    leaf_tries: Option<u32>,
    parent_r: i32,
}

impl CrushMap {
    /// Maps input `x` with rule `rule` to at most `result_max` devices.
    ///
    /// `weights` are the devices' reweights (0x10000 = in, 0 = out), not their CRUSH
    /// weights; devices beyond its end are out. A firstn rule gives a shorter list when it
    /// finds too few, an indep rule gives [`ITEM_NONE`] holes. An unknown rule gives nothing.
    pub fn do_rule(
        &self,
        rule: u32,
        x: u32,
        result_max: usize,
        weights: &[u32],
        choose_args: Option<&ChooseArgs>,
    ) -> Vec<i32> {
        let mut out = Vec::with_capacity(result_max.min(64));
        self.do_rule_into(&mut Scratch::new(), rule, x, result_max, weights, choose_args, &mut out);
        out
    }

    /// As [`do_rule`](Self::do_rule), in reused memory; `out` is cleared first.
    #[allow(clippy::too_many_arguments, reason = "the inputs of CRUSH are what they are")]
    pub fn do_rule_into(
        &self,
        scratch: &mut Scratch,
        rule: u32,
        x: u32,
        result_max: usize,
        weights: &[u32],
        choose_args: Option<&ChooseArgs>,
        out: &mut Vec<i32>,
    ) {
        out.clear();
        let Some(rule) = self.rule(rule) else { return };
        // Positions are 32-bit signed in the protocol; no pool has more than 255.
        let result_max = result_max.min(0xffff);
        scratch.generation += 1;
        let Scratch { from, to, leaves, perms, generation, draws_max } = scratch;
        for v in [&mut *from, &mut *to, &mut *leaves] {
            v.clear();
            v.resize(result_max, 0);
        }
        let mut size = 0usize;
        let t = &self.tunables;
        // The tunable counts retries, the mapper tries.
        let mut tries = t.choose_total_tries.wrapping_add(1);
        let mut leaf_tries = 0u32;
        let mut step = Step {
            map: self,
            args: choose_args,
            weights,
            x,
            local_retries: t.choose_local_tries,
            local_fallback_retries: t.choose_local_fallback_tries,
            vary_r: u32::from(t.chooseleaf_vary_r),
            stable: t.chooseleaf_stable != 0,
        };
        let mut work = Work { perms, generation: *generation, draws_left: *draws_max };
        for s in &rule.steps {
            match s.op {
                step_op::TAKE => {
                    let device = s.arg1 >= 0 && s.arg1 < self.max_devices;
                    if (device || self.bucket(s.arg1).is_some()) && result_max > 0 {
                        from[0] = s.arg1;
                        size = 1;
                    }
                }
                step_op::SET_CHOOSE_TRIES if s.arg1 > 0 => tries = s.arg1 as u32,
                step_op::SET_CHOOSELEAF_TRIES if s.arg1 > 0 => leaf_tries = s.arg1 as u32,
                step_op::SET_CHOOSE_LOCAL_TRIES if s.arg1 >= 0 => {
                    step.local_retries = s.arg1 as u32
                }
                step_op::SET_CHOOSE_LOCAL_FALLBACK_TRIES if s.arg1 >= 0 => {
                    step.local_fallback_retries = s.arg1 as u32
                }
                step_op::SET_CHOOSELEAF_VARY_R if s.arg1 >= 0 => step.vary_r = s.arg1 as u32,
                step_op::SET_CHOOSELEAF_STABLE if s.arg1 >= 0 => step.stable = s.arg1 != 0,
                step_op::CHOOSE_FIRSTN
                | step_op::CHOOSELEAF_FIRSTN
                | step_op::CHOOSE_INDEP
                | step_op::CHOOSELEAF_INDEP => {
                    if size == 0 {
                        continue;
                    }
                    let firstn =
                        matches!(s.op, step_op::CHOOSE_FIRSTN | step_op::CHOOSELEAF_FIRSTN);
                    let to_leaf =
                        matches!(s.op, step_op::CHOOSELEAF_FIRSTN | step_op::CHOOSELEAF_INDEP);
                    let inner_tries = match (leaf_tries, firstn) {
                        (0, false) => 1,
                        (0, true) if t.chooseleaf_descend_once != 0 => 1,
                        (0, true) => tries,
                        (n, _) => n,
                    };
                    let numrep =
                        if s.arg1 > 0 { s.arg1 } else { s.arg1.saturating_add(result_max as i32) };
                    let call = Call {
                        numrep,
                        kind: s.arg2,
                        tries,
                        leaf_tries: to_leaf.then_some(inner_tries),
                        parent_r: 0,
                    };
                    let mut filled = 0;
                    for item in from.iter().take(size) {
                        // Not a bucket: a device, or a hole an earlier step left.
                        let (Some(bucket), 1..) = (self.bucket(*item), numrep) else { continue };
                        let room = result_max - filled;
                        let (to, leaves) = (&mut to[filled..], &mut leaves[filled..]);
                        let leaves = to_leaf.then_some(leaves);
                        if firstn {
                            filled += step.firstn(&mut work, bucket, call, to, 0, room, leaves);
                        } else {
                            let n = room.min(numrep as usize);
                            step.indep(&mut work, bucket, call, to, 0, n, leaves);
                            filled += n;
                        }
                    }
                    std::mem::swap(from, if to_leaf { leaves } else { to });
                    size = filled;
                }
                step_op::EMIT => {
                    let room = result_max - out.len();
                    out.extend(from.iter().take(size.min(room)));
                    size = 0;
                }
                _ => {}
            }
        }
    }
}

/// Where a descent ended.
enum Found {
    /// An item of the wanted type (its type in the map).
    Item(i32),
    /// An empty bucket on the way.
    Empty,
    /// An item that cannot be: this position gets nothing.
    Bad,
}

impl Step<'_> {
    /// Chooses distinct items into `out[outpos..]`, at most `room`; returns the new number
    /// of items in `out`. `leaves` gets the device under each at the same position.
    #[allow(clippy::too_many_arguments, reason = "splitting the state would hide the algorithm")]
    fn firstn(
        &self,
        work: &mut Work<'_>,
        bucket: &Bucket,
        call: Call,
        out: &mut [i32],
        mut outpos: usize,
        room: usize,
        mut leaves: Option<&mut [i32]>,
    ) -> usize {
        let mut room = room.min(out.len().saturating_sub(outpos));
        let mut rep = if self.stable { 0 } else { outpos as i32 };
        while rep < call.numrep && room > 0 && work.draws_left > 0 {
            if let Some(item) =
                self.firstn_one(work, bucket, call, rep, out, outpos, room, leaves.as_deref_mut())
            {
                out[outpos] = item;
                outpos += 1;
                room -= 1;
            }
            rep += 1;
        }
        outpos
    }

    /// One position of [`firstn`](Self::firstn): tries until an item is neither taken nor out.
    #[allow(clippy::too_many_arguments, reason = "as firstn")]
    fn firstn_one(
        &self,
        work: &mut Work<'_>,
        bucket: &Bucket,
        call: Call,
        rep: i32,
        out: &[i32],
        outpos: usize,
        room: usize,
        mut leaves: Option<&mut [i32]>,
    ) -> Option<i32> {
        let mut failed_total = 0u32;
        loop {
            // A new descent from the top.
            let mut inside = bucket;
            let mut failed_here = 0u32;
            let mut depth = 0;
            loop {
                let r = rep.wrapping_add(call.parent_r).wrapping_add(failed_total as i32);
                let size = inside.items.len() as u32;
                let permute = self.local_fallback_retries > 0
                    && failed_here >= size >> 1
                    && failed_here > self.local_fallback_retries;
                let mut collide = false;
                let reject = match self.choose(work, inside, r, outpos, permute) {
                    Found::Bad => return None,
                    Found::Empty => true,
                    Found::Item(item) => {
                        let (kind, child) = self.kind_of(item)?;
                        if kind != call.kind {
                            depth += 1;
                            inside = child.filter(|_| depth <= self.map.buckets.len())?;
                            continue;
                        }
                        collide = out.iter().take(outpos).any(|o| *o == item);
                        let rejected = !collide
                            && (!self.leaf_firstn(
                                work,
                                item,
                                child,
                                call,
                                r,
                                outpos,
                                room,
                                leaves.as_deref_mut(),
                            ) || (kind == 0 && self.is_out(item)));
                        if !collide && !rejected {
                            return Some(item);
                        }
                        rejected
                    }
                };
                if work.draws_left == 0 {
                    return None;
                }
                failed_total = failed_total.wrapping_add(1);
                failed_here = failed_here.wrapping_add(1);
                depth = 0;
                debug_assert!(reject || collide);
                if collide && failed_here <= self.local_retries {
                    continue;
                }
                if self.local_fallback_retries > 0
                    && failed_here <= size.wrapping_add(self.local_fallback_retries)
                {
                    continue;
                }
                if failed_total < call.tries {
                    break;
                }
                return None;
            }
        }
    }

    /// Finds the device under a chosen item, if the call wants one. False: there is none.
    #[allow(clippy::too_many_arguments, reason = "as firstn")]
    fn leaf_firstn(
        &self,
        work: &mut Work<'_>,
        item: i32,
        child: Option<&Bucket>,
        call: Call,
        r: i32,
        outpos: usize,
        room: usize,
        leaves: Option<&mut [i32]>,
    ) -> bool {
        let (Some(tries), Some(leaves)) = (call.leaf_tries, leaves) else { return true };
        let Some(child) = child else {
            leaves[outpos] = item;
            return true;
        };
        let parent_r =
            if self.vary_r != 0 { r.wrapping_shr(self.vary_r.wrapping_sub(1)) } else { 0 };
        let numrep = if self.stable { 1 } else { outpos as i32 + 1 };
        let inner = Call { numrep, kind: 0, tries, leaf_tries: None, parent_r };
        self.firstn(work, child, inner, leaves, outpos, room, None) > outpos
    }

    /// Chooses `left` items for the fixed positions `out[outpos..outpos + left]`; what cannot
    /// be filled becomes [`ITEM_NONE`].
    #[allow(clippy::too_many_arguments, reason = "as firstn")]
    fn indep(
        &self,
        work: &mut Work<'_>,
        bucket: &Bucket,
        call: Call,
        out: &mut [i32],
        outpos: usize,
        left: usize,
        mut leaves: Option<&mut [i32]>,
    ) {
        let endpos = (outpos + left).min(out.len());
        let mut left = endpos.saturating_sub(outpos);
        let undef =
            |v: &mut [i32]| v.iter_mut().take(endpos).skip(outpos).for_each(|o| *o = ITEM_UNDEF);
        undef(out);
        if let Some(l) = leaves.as_deref_mut() {
            undef(l);
        }
        let mut failed = 0u32;
        while left > 0 && failed < call.tries && work.draws_left > 0 {
            for rep in outpos..endpos {
                if out[rep] != ITEM_UNDEF {
                    continue;
                }
                let placed = self.indep_one(
                    work,
                    bucket,
                    call,
                    rep,
                    failed,
                    out,
                    outpos..endpos,
                    leaves.as_deref_mut(),
                );
                if let Some(item) = placed {
                    out[rep] = item;
                    left -= 1;
                }
            }
            failed += 1;
        }
        let none = |v: &mut [i32]| {
            v.iter_mut()
                .take(endpos)
                .skip(outpos)
                .filter(|o| **o == ITEM_UNDEF)
                .for_each(|o| *o = ITEM_NONE);
        };
        none(out);
        if let Some(l) = leaves {
            none(l);
        }
    }

    /// One attempt at one position of [`indep`](Self::indep): the item, [`ITEM_NONE`] if the
    /// position is hopeless, `None` to try again in the next round.
    #[allow(clippy::too_many_arguments, reason = "as firstn")]
    fn indep_one(
        &self,
        work: &mut Work<'_>,
        bucket: &Bucket,
        call: Call,
        rep: usize,
        failed: u32,
        out: &[i32],
        range: std::ops::Range<usize>,
        mut leaves: Option<&mut [i32]>,
    ) -> Option<i32> {
        let mut inside = bucket;
        let mut depth = 0;
        let hopeless = |leaves: Option<&mut [i32]>| {
            if let Some(l) = leaves {
                l[rep] = ITEM_NONE;
            }
            Some(ITEM_NONE)
        };
        loop {
            let n = call.numrep as u32;
            // A uniform bucket whose size is a multiple of n would repeat itself.
            let uniform = matches!(inside.data, BucketData::Uniform { .. });
            let stride = if uniform && n != 0 && (inside.items.len() as u32).is_multiple_of(n) {
                n + 1
            } else {
                n
            };
            let r = (rep as i32)
                .wrapping_add(call.parent_r)
                .wrapping_add(stride.wrapping_mul(failed) as i32);
            let item = match self.choose(work, inside, r, range.start, false) {
                Found::Empty => return None,
                Found::Bad => return hopeless(leaves),
                Found::Item(item) => item,
            };
            let Some((kind, child)) = self.kind_of(item) else { return hopeless(leaves) };
            if kind != call.kind {
                depth += 1;
                match child {
                    Some(c) if depth <= self.map.buckets.len() => inside = c,
                    _ => return hopeless(leaves),
                }
                continue;
            }
            if out.get(range.clone())?.contains(&item) {
                return None;
            }
            if let (Some(tries), Some(leaves)) = (call.leaf_tries, leaves.as_deref_mut()) {
                match child {
                    Some(child) => {
                        let inner = Call {
                            numrep: call.numrep,
                            kind: 0,
                            tries,
                            leaf_tries: None,
                            parent_r: r,
                        };
                        self.indep(work, child, inner, leaves, rep, 1, None);
                        if leaves[rep] == ITEM_NONE {
                            return None;
                        }
                    }
                    None => leaves[rep] = item,
                }
            }
            if kind == 0 && self.is_out(item) {
                return None;
            }
            return Some(item);
        }
    }

    /// Type of an item and, for a bucket, the bucket. `None` if there is no such bucket.
    fn kind_of(&self, item: i32) -> Option<(i32, Option<&Bucket>)> {
        if item >= 0 {
            return Some((0, None));
        }
        let b = self.map.bucket(item)?;
        Some((i32::from(b.kind), Some(b)))
    }

    /// True if the device's reweight rejects it for this input.
    fn is_out(&self, item: i32) -> bool {
        match usize::try_from(item).ok().and_then(|i| self.weights.get(i)) {
            None | Some(0) => true,
            Some(0x1_0000..) => false,
            Some(w) => hash32_2(self.x, item as u32) & 0xffff >= *w,
        }
    }

    /// Draws one item of a bucket.
    fn choose(
        &self,
        work: &mut Work<'_>,
        b: &Bucket,
        r: i32,
        position: usize,
        permute: bool,
    ) -> Found {
        let size = b.items.len() as u64;
        if size == 0 {
            // Costs something too: an empty bucket is retried like any other.
            work.draws_left = work.draws_left.saturating_sub(1);
            return Found::Empty;
        }
        work.draws_left = work.draws_left.saturating_sub(size);
        if work.draws_left == 0 {
            return Found::Bad;
        }
        let r = r as u32;
        let pos = match &b.data {
            _ if permute => self.draw_permuted(work, b, r),
            BucketData::Uniform { .. } => self.draw_permuted(work, b, r),
            BucketData::List { weights, sums } => self.draw_list(b, weights, sums, r),
            BucketData::Tree { nodes } => self.draw_tree(b, nodes, r),
            BucketData::Straw { straws, .. } => self.draw_straw(b, straws, r),
            BucketData::Straw2 { weights } => {
                let arg = self.args.and_then(|a| a.get(&(!b.id as u32)));
                self.draw_straw2(b, weights, arg, r, position)
            }
        };
        match b.items.get(pos) {
            Some(item) if *item < self.map.max_devices => Found::Item(*item),
            _ => Found::Bad,
        }
    }

    /// Position `r` of a pseudo-random permutation of the bucket.
    fn draw_permuted(&self, work: &mut Work<'_>, b: &Bucket, r: u32) -> usize {
        let size = b.items.len();
        let wanted = r as usize % size;
        let hash = |p: usize| {
            if b.hash == RJENKINS1 { hash32_3(self.x, b.id as u32, p as u32) } else { 0 }
        };
        if wanted == 0 {
            // The usual case needs no permutation.
            return hash(0) as usize % size;
        }
        let Some(slot) = CrushMap::slot(b.id) else { return 0 };
        if work.perms.len() <= slot {
            work.perms.resize_with(self.map.buckets.len().max(slot + 1), Perm::default);
        }
        let perm = &mut work.perms[slot];
        if perm.generation != work.generation {
            perm.generation = work.generation;
            perm.done = 0;
            perm.order.clear();
            perm.order.extend(0..size as u32);
        }
        while perm.done <= wanted {
            let p = perm.done;
            let i = hash(p) as usize % (size - p);
            perm.order.swap(p, p + i);
            perm.done += 1;
        }
        perm.order[wanted] as usize
    }

    fn draw_list(&self, b: &Bucket, weights: &[u32], sums: &[u32], r: u32) -> usize {
        let id = b.id as u32;
        for (i, ((item, weight), sum)) in b.items.iter().zip(weights).zip(sums).enumerate().rev() {
            let h = if b.hash == RJENKINS1 { hash32_4(self.x, *item as u32, r, id) } else { 0 };
            let w = (u64::from(h & 0xffff) * u64::from(*sum)) >> 16;
            if w < u64::from(*weight) {
                return i;
            }
        }
        0
    }

    fn draw_tree(&self, b: &Bucket, nodes: &[u32], r: u32) -> usize {
        let weight = |n: usize| u64::from(nodes.get(n).copied().unwrap_or(0));
        let mut n = nodes.len() >> 1;
        while n != 0 && n & 1 == 0 {
            let h =
                if b.hash == RJENKINS1 { hash32_4(self.x, n as u32, r, b.id as u32) } else { 0 };
            let point = (u64::from(h) * weight(n)) >> 32;
            let half = 1 << (n.trailing_zeros() - 1);
            n = if point < weight(n - half) { n - half } else { n + half };
        }
        n >> 1
    }

    fn draw_straw(&self, b: &Bucket, straws: &[u32], r: u32) -> usize {
        let (mut high, mut high_draw) = (0, 0u64);
        for (i, (item, straw)) in b.items.iter().zip(straws).enumerate() {
            let h = if b.hash == RJENKINS1 { hash32_3(self.x, *item as u32, r) } else { 0 };
            let draw = u64::from(h & 0xffff) * u64::from(*straw);
            if i == 0 || draw > high_draw {
                (high, high_draw) = (i, draw);
            }
        }
        high
    }

    fn draw_straw2(
        &self,
        b: &Bucket,
        weights: &[u32],
        arg: Option<&ChooseArg>,
        r: u32,
        position: usize,
    ) -> usize {
        let mut weights = weights;
        let mut ids = b.items.as_slice();
        if let Some(arg) = arg {
            if let Some(set) = arg.weight_sets.get(position).or(arg.weight_sets.last()) {
                weights = set;
            }
            if !arg.ids.is_empty() {
                ids = &arg.ids;
            }
        }
        // The draw of an item is ln(u) / weight, zero or negative; the greatest wins, the
        // first of equals. Here both are negated: the least n / w, by whole numbers, wins.
        // n / w < best is n < best · w, so only the few winners on the way divide.
        let (mut high, mut best) = (0, u64::MAX);
        for (chunk, (ids, weights)) in ids.chunks(LANES).zip(weights.chunks(LANES)).enumerate() {
            // Hashing a full array, whatever its last elements, lets the compiler use vectors.
            let mut lanes = [0u32; LANES];
            for (lane, id) in lanes.iter_mut().zip(ids) {
                *lane = *id as u32;
            }
            let mut draws = [0u32; LANES];
            if b.hash == RJENKINS1 {
                for (draw, id) in draws.iter_mut().zip(lanes) {
                    *draw = hash32_3(self.x, id, r);
                }
            }
            for (lane, (u, weight)) in draws.into_iter().zip(weights).enumerate().take(ids.len()) {
                let (n, w) = (negative_ln(u).unsigned_abs(), u64::from(*weight));
                // Weight 0 never wins, unless nobody weighs anything: then the first item does.
                if w != 0 && u128::from(n) < u128::from(best) * u128::from(w) {
                    best = n / w;
                    high = chunk * LANES + lane;
                }
            }
        }
        high
    }
}
