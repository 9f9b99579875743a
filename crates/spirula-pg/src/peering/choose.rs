//! Which copy's history is the right one, and who shall serve it. Pure functions.

use spirula_messages::cluster::pg::PgInfo;
use spirula_types::{EVersion, Peer};
use std::collections::BTreeMap;

/// What was decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Who has the authoritative history.
    pub auth: Peer,
    /// The acting set wanted, primary first.
    pub want: Vec<Peer>,
    /// Members of the up set that must be backfilled.
    pub backfill: Vec<Peer>,
}

/// The copy with the authoritative history: of the newest activation, whole, with the newest
/// entry, then the longest log, then our own.
///
/// All copies of that activation have what was acknowledged since. An entry that only a hollow copy
/// has was not acknowledged, and nobody may have its data: it is chosen only if no other is to be
/// had.
pub(crate) fn find_auth(infos: &BTreeMap<Peer, &PgInfo>, me: Peer) -> Option<Peer> {
    let shared = infos.values().map(|i| i.history_les).max()?;
    let whole = infos.values().filter(|i| i.is_whole()).map(|i| i.les).max().unwrap_or(0);
    let les = shared.max(whole);
    let least = infos.values().filter(|i| i.les >= les).map(|i| i.last_update()).min()?;
    let fit =
        || infos.iter().filter(|(_, i)| i.les >= les && i.last_update() >= least && i.is_whole());
    let hollow = fit().all(|(_, i)| i.hollow);
    fit()
        .filter(|(_, i)| i.hollow == hollow)
        .max_by(|(a, x), (b, y)| {
            let last = x.last_update().cmp(&y.last_update());
            // The smaller tail is the longer log; then ourselves; then the lower number.
            let tail = y.log_tail().cmp(&x.log_tail());
            last.then(tail).then((**a == me).cmp(&(**b == me))).then(b.cmp(a))
        })
        .map(|(o, _)| *o)
}

/// Is an activation known that is newer than that of every whole copy?
pub(crate) fn is_bound(infos: &BTreeMap<Peer, &PgInfo>) -> bool {
    let whole = infos.values().filter(|i| i.is_whole()).map(|i| i.les).max().unwrap_or(0);
    infos.values().any(|i| i.history_les > whole)
}

/// The same as [`find_auth`] for an erasure-coded PG: of the newest activation the shortest log,
/// since what is beyond it was not acknowledged and can be taken back.
pub(crate) fn find_auth_erasure(infos: &BTreeMap<Peer, &PgInfo>, me: Peer) -> Option<Peer> {
    let shared = infos.values().map(|i| i.history_les).max()?;
    let whole = infos.values().filter(|i| i.is_whole()).map(|i| i.les).max().unwrap_or(0);
    let les = shared.max(whole);
    infos
        .iter()
        .filter(|(_, i)| i.les >= les && i.is_whole())
        .min_by(|(a, x), (b, y)| {
            let last = x.last_update().cmp(&y.last_update());
            last.then(x.log_tail().cmp(&y.log_tail()))
                .then((**b == me).cmp(&(**a == me)))
                .then(a.cmp(b))
        })
        .map(|(o, _)| *o)
}

/// Who shall serve each shard, given who has the history. `None` if fewer than `least` shards
/// are to be had.
///
/// Where anything was written, so many shards must be there with what they hold. A member that has
/// nothing (its disk was replaced) can be told everything by a log that reaches back to the
/// beginning, but nobody can compute its shards, and it says nothing of the newest entries: one
/// that fewer than `least` shards ever had would become history, be confirmed to the client that
/// sends it again, and be unfound for ever, though a member that is away could have shown that it
/// is to be taken back.
pub(crate) fn choose_erasure(
    infos: &BTreeMap<Peer, &PgInfo>,
    auth: Peer,
    up: &[Peer],
    acting: &[Peer],
    size: usize,
    least: usize,
) -> Option<Choice> {
    let zero = EVersion::default();
    let tail = |p: &Peer| infos.get(p).map_or(zero, |i| i.log_tail());
    let mut oldest = tail(&auth);
    loop {
        let usable = |p: &Peer| match infos.get(p) {
            Some(i) => i.is_whole() && i.last_update() >= oldest,
            None => oldest == zero,
        };
        // Who has something goes before who has nothing, though the log may tell it everything.
        let holds = |p: &Peer| infos.contains_key(p) && usable(p);
        let mut c = Choice { auth, ..Choice::default() };
        for shard in 0..size {
            let of =
                |set: &[Peer]| set.iter().find(|p| usize::try_from(p.shard) == Ok(shard)).copied();
            let wanted = of(up);
            let stray =
                infos.keys().find(|p| usize::try_from(p.shard) == Ok(shard) && usable(p)).copied();
            let serves = wanted.filter(holds).or_else(|| of(acting).filter(holds)).or(stray);
            let serves = serves.or_else(|| wanted.filter(usable));
            c.want.extend(serves);
            c.backfill.extend(wanted.filter(|w| serves != Some(*w)));
        }
        // Members are brought up to date by the primary's log, which may begin later.
        match c.want.first().map(tail) {
            Some(later) if later > oldest => oldest = later,
            _ => {
                let written = infos.get(&auth).is_some_and(|i| i.last_update() > zero);
                let there = c.want.iter().filter(|p| !written || holds(p)).count();
                return (there >= least).then_some(c);
            }
        }
    }
}

/// Who shall serve when every member is whole, in an erasure-coded PG.
pub(crate) fn choose_whole_erasure(up: &[Peer], acting: &[Peer]) -> Vec<Peer> {
    let mut by_shard: BTreeMap<i8, Peer> = acting.iter().map(|p| (p.shard, *p)).collect();
    by_shard.extend(up.iter().map(|p| (p.shard, *p)));
    by_shard.into_values().collect()
}

/// Who shall serve, given who has the history. The up set's primary, unless it lacks more than
/// `lag` entries and objects (others must then be fetched before anybody may use them) and another
/// member of the up set does not.
pub(crate) fn choose(
    infos: &BTreeMap<Peer, &PgInfo>,
    auth: Peer,
    up: &[Peer],
    acting: &[Peer],
    up_primary: Peer,
    size: usize,
    lag: u64,
) -> Choice {
    let zero = EVersion::default();
    let auth_tail = infos.get(&auth).map_or(zero, |i| i.log_tail());
    let auth_head = infos.get(&auth).map_or(zero, |i| i.last_update());
    // An OSD that has nothing is at the beginning of the history, if the log reaches back there. A
    // log that begins behind the authoritative one's end does not meet it: in a split the newest
    // entries of the one went to a sibling, and the other had been trimmed up to there.
    let usable = |osd: Peer, oldest: EVersion| match infos.get(&osd) {
        Some(i) => i.is_whole() && i.last_update() >= oldest && i.log_tail() <= auth_head,
        None => oldest == zero,
    };
    let newest = infos.get(&auth).map_or(zero, |i| i.last_update()).version;
    let lacks = |osd: &Peer| match infos.get(osd) {
        Some(i) => newest.saturating_sub(i.last_update().version) + u64::from(i.missing),
        None => newest,
    };
    let primary = if up_primary.is_some() && usable(up_primary, auth_tail) {
        // Whoever serves now goes on, so that the choice is the same when it is made again.
        let others = acting.iter().chain(up).filter(|o| up.contains(o) && usable(**o, auth_tail));
        let ready = |o: &Peer| lacks(o) <= lag;
        if ready(&up_primary) {
            up_primary
        } else {
            others.copied().find(ready).unwrap_or(up_primary)
        }
    } else {
        auth
    };
    let oldest = infos.get(&primary).map_or(auth_tail, |i| i.log_tail());
    let mut c = Choice { auth, want: vec![primary], backfill: Vec::new() };
    for osd in up.iter().copied().filter(|o| *o != primary) {
        if usable(osd, oldest) {
            c.want.push(osd);
        } else {
            c.backfill.push(osd);
        }
    }
    let others = acting.iter().copied().chain(infos.keys().copied());
    for osd in others {
        if c.want.len() >= size {
            break;
        }
        if infos.contains_key(&osd)
            && !c.want.contains(&osd)
            && !up.contains(&osd)
            && usable(osd, oldest)
        {
            c.want.push(osd);
        }
    }
    c
}

/// Who shall serve when every member is whole: the up set, and acting members beside it only
/// to fill the places that it leaves.
pub(crate) fn choose_whole(up: &[Peer], acting: &[Peer], size: usize) -> Vec<Peer> {
    let mut want = up.to_vec();
    for osd in acting {
        if want.len() < size && !want.contains(osd) {
            want.push(*osd);
        }
    }
    want
}

#[cfg(test)]
mod tests {
    use super::*;
    use spirula_messages::cluster::pg::PgHead;
    use spirula_types::{HObject, OsdId};

    fn info(les: u32, last: u64, tail: u64) -> PgInfo {
        let head = PgHead {
            last_update: EVersion::new(1, last),
            log_tail: if tail == 0 { EVersion::default() } else { EVersion::new(1, tail) },
            ..PgHead::default()
        };
        PgInfo { les, head, last_backfill: HObject::max(), ..PgInfo::default() }
    }

    fn part(i: PgInfo) -> PgInfo {
        PgInfo { last_backfill: HObject::min(), ..i }
    }

    fn auth(infos: &[(OsdId, PgInfo)]) -> Option<OsdId> {
        find_auth(&infos.iter().map(|(o, i)| (Peer::whole(*o), i)).collect(), Peer::whole(0))
            .map(|p| p.osd)
    }

    #[test]
    fn newest_activation_wins_over_a_longer_log() {
        assert_eq!(auth(&[(0, info(5, 90, 1)), (1, info(7, 80, 1))]), Some(1));
        assert_eq!(auth(&[(0, info(7, 80, 1)), (1, info(7, 81, 1))]), Some(1));
        assert_eq!(auth(&[(0, info(7, 80, 9)), (1, info(7, 80, 1))]), Some(1));
        assert_eq!(auth(&[(0, info(7, 80, 1)), (1, info(7, 80, 1))]), Some(0));
    }

    #[test]
    fn a_copy_that_is_being_backfilled_is_no_source_but_tells_of_its_activation() {
        assert_eq!(auth(&[(0, part(info(9, 99, 1)))]), None);
        let heard = PgInfo { history_les: 9, ..part(info(9, 99, 1)) };
        // All members shared activation 9; who has only 7 lacks writes.
        assert_eq!(auth(&[(0, heard), (1, info(7, 80, 1))]), None);
    }

    /// The acting set wanted, and who is to be backfilled.
    fn pick(infos: &[(OsdId, PgInfo)], up: &[OsdId], acting: &[OsdId]) -> (Vec<OsdId>, Vec<OsdId>) {
        let (up, acting) = (&Peer::members(up, false)[..], &Peer::members(acting, false)[..]);
        let infos: BTreeMap<Peer, &PgInfo> =
            infos.iter().map(|(o, i)| (Peer::whole(*o), i)).collect();
        let auth = find_auth(&infos, acting[0]).unwrap();
        let c = choose(&infos, auth, up, acting, up[0], 3, 50);
        (Peer::places(&c.want, 3), Peer::places(&c.backfill, 3))
    }

    #[test]
    fn a_primary_whose_log_begins_behind_the_authoritative_one_is_backfilled_and_not_the_one_that_has_all()
     {
        // osd.0 wrote on without the others; the activation of 26 did not see that.
        let all = [(0, info(3, 15, 8)), (1, info(26, 7, 0))];
        assert_eq!(pick(&all, &[0, 1], &[0, 1]), (vec![1], vec![0]));
        assert_eq!(pick(&all, &[1, 0], &[1, 0]), (vec![1], vec![0]));
    }

    #[test]
    fn an_empty_primary_hands_over_and_is_backfilled() {
        let all = [(1, info(7, 80, 10)), (2, info(7, 80, 10))];
        let c = pick(&all, &[0, 1, 2], &[0, 1, 2]);
        assert_eq!(c, (vec![1, 2], vec![0]));
    }

    #[test]
    fn a_member_whose_log_reaches_back_to_the_beginning_needs_no_backfill() {
        let all = [(1, info(7, 80, 0)), (2, info(7, 80, 0))];
        let c = pick(&all, &[1, 2, 3], &[1, 2, 3]);
        assert_eq!(c, (vec![1, 2, 3], vec![]));
    }

    #[test]
    fn a_primary_that_lacks_much_serves_again_when_it_is_recovered() {
        let mut all = [(1, info(7, 80, 1)), (2, info(9, 180, 1)), (3, info(9, 180, 1))];
        assert_eq!(pick(&all, &[1, 2, 3], &[1, 2, 3]), (vec![2, 1, 3], vec![]));
        assert_eq!(
            pick(&all, &[1, 2, 3], &[3, 1, 2]),
            (vec![3, 1, 2], vec![]),
            "the choice stays as it is"
        );
        // It has the log, but not the objects.
        (all[0].1.head.last_update, all[0].1.missing) = (all[1].1.head.last_update, 51);
        assert_eq!(pick(&all, &[1, 2, 3], &[2, 1, 3]).0, vec![2, 1, 3]);
        all[0].1.missing = 50;
        assert_eq!(pick(&all, &[1, 2, 3], &[2, 1, 3]).0, vec![1, 2, 3]);
        // Where nobody is better off there is no choice.
        all.iter_mut().for_each(|(_, i)| i.missing = 99);
        assert_eq!(pick(&all, &[1, 2, 3], &[2, 1, 3]).0, vec![1, 2, 3]);
    }

    #[test]
    fn entries_that_only_hollow_copies_have_are_no_history() {
        let hollow = |i| PgInfo { hollow: true, ..i };
        assert_eq!(
            auth(&[(0, info(7, 80, 1)), (1, hollow(info(7, 82, 1))), (2, info(7, 81, 1))]),
            Some(2)
        );
        assert_eq!(
            auth(&[(0, hollow(info(7, 83, 1))), (1, info(6, 84, 1))]),
            Some(0),
            "of an older activation"
        );
    }

    #[test]
    fn old_members_serve_until_new_ones_are_filled() {
        let all = [(1, info(7, 80, 10)), (2, info(7, 80, 10)), (3, info(7, 80, 10))];
        let c = pick(&all, &[1, 5, 6], &[1, 5, 6]);
        assert_eq!(c, (vec![1, 2, 3], vec![5, 6]));
        // One whose log has been overtaken is filled anew.
        let late = [(1, info(7, 80, 10)), (2, info(7, 5, 1))];
        assert_eq!(pick(&late, &[1, 2], &[1, 2]).1, vec![2]);
    }

    fn erasure(
        infos: &[(Peer, PgInfo)],
        up: &[OsdId],
        acting: &[OsdId],
    ) -> Option<(Vec<OsdId>, Vec<OsdId>)> {
        let (up, acting) = (Peer::members(up, true), Peer::members(acting, true));
        let infos: BTreeMap<Peer, &PgInfo> = infos.iter().map(|(o, i)| (*o, i)).collect();
        let auth = find_auth_erasure(&infos, acting[0]).unwrap();
        let c = choose_erasure(&infos, auth, &up, &acting, 3, 2)?;
        Some((Peer::places(&c.want, 3), Peer::places(&c.backfill, 3)))
    }

    #[test]
    fn the_shortest_log_of_the_newest_activation_is_an_erasure_coded_pgs_history() {
        let p = |osd, shard| Peer::new(osd, shard);
        let all = [(p(1, 0), info(7, 82, 1)), (p(2, 1), info(7, 80, 1)), (p(3, 2), info(5, 70, 1))];
        let infos: BTreeMap<Peer, &PgInfo> = all.iter().map(|(o, i)| (*o, i)).collect();
        assert_eq!(find_auth_erasure(&infos, p(1, 0)), Some(p(2, 1)));
    }

    #[test]
    fn who_has_nothing_serves_a_shard_only_if_the_primarys_log_tells_it_everything() {
        const NO: OsdId = spirula_types::OSD_NONE;
        let p = |osd, shard| Peer::new(osd, shard);
        // The authoritative log reaches back to the beginning, the primary's does not.
        let all = [(p(1, 0), info(7, 80, 10)), (p(2, 1), info(7, 80, 0))];
        assert_eq!(erasure(&all, &[1, 2, 3], &[1, 2, 3]), Some((vec![1, 2, NO], vec![NO, NO, 3])));
        let all = [(p(1, 0), info(7, 80, 0)), (p(2, 1), info(7, 80, 0))];
        assert_eq!(erasure(&all, &[1, 2, 3], &[1, 2, 3]), Some((vec![1, 2, 3], vec![])));
        // Who holds a shard serves it until the one that shall have it is filled.
        let all = [(p(1, 0), info(7, 80, 0)), (p(2, 1), info(7, 80, 0)), (p(4, 2), info(7, 80, 0))];
        assert_eq!(erasure(&all, &[1, 2, 3], &[1, 2, 3]), Some((vec![1, 2, 4], vec![NO, NO, 3])));
        assert_eq!(erasure(&[(p(1, 0), info(7, 80, 10))], &[1, 2, 3], &[1, 2, 3]), None);
    }

    #[test]
    fn members_that_have_nothing_are_no_shards_of_what_was_written() {
        let p = |osd, shard| Peer::new(osd, shard);
        // One shard is left of two that are needed, and its newest entry may be its own alone.
        assert_eq!(erasure(&[(p(1, 0), info(7, 80, 0))], &[1, 2, 3], &[1, 2, 3]), None);
        // Where nothing was written, nothing is lost.
        let empty = PgInfo { head: PgHead::default(), ..info(7, 0, 0) };
        assert_eq!(
            erasure(&[(p(1, 0), empty)], &[1, 2, 3], &[1, 2, 3]).map(|c| c.0),
            Some(vec![1, 2, 3])
        );
    }
}
