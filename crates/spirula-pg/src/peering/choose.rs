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
pub(crate) fn find_auth(infos: &BTreeMap<Peer, &PgInfo>, me: Peer) -> Option<Peer> {
    let shared = infos.values().map(|i| i.history_les).max()?;
    let whole = infos.values().filter(|i| i.is_whole()).map(|i| i.les).max().unwrap_or(0);
    let les = shared.max(whole);
    let least = infos.values().filter(|i| i.les >= les).map(|i| i.last_update()).min()?;
    infos
        .iter()
        .filter(|(_, i)| i.les >= les && i.last_update() >= least && i.is_whole())
        .max_by(|(a, x), (b, y)| {
            let last = x.last_update().cmp(&y.last_update());
            // The smaller tail is the longer log; then ourselves; then the lower number.
            let tail = y.log_tail().cmp(&x.log_tail());
            last.then(tail).then((**a == me).cmp(&(**b == me))).then(b.cmp(a))
        })
        .map(|(o, _)| *o)
}

/// Who shall serve, given who has the history.
pub(crate) fn choose(
    infos: &BTreeMap<Peer, &PgInfo>,
    auth: Peer,
    up: &[Peer],
    acting: &[Peer],
    up_primary: Peer,
    size: usize,
) -> Choice {
    let zero = EVersion::default();
    let auth_tail = infos.get(&auth).map_or(zero, |i| i.log_tail());
    // An OSD that has nothing is at the beginning of the history, if the log reaches back there.
    let usable = |osd: Peer, oldest: EVersion| match infos.get(&osd) {
        Some(i) => i.is_whole() && i.last_update() >= oldest,
        None => oldest == zero,
    };
    let primary = if up_primary.is_some() && usable(up_primary, auth_tail) { up_primary } else { auth };
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
        if infos.contains_key(&osd) && !c.want.contains(&osd) && !up.contains(&osd) && usable(osd, oldest) {
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
        find_auth(&infos.iter().map(|(o, i)| (Peer::whole(*o), i)).collect(), Peer::whole(0)).map(|p| p.osd)
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
        let infos: BTreeMap<Peer, &PgInfo> = infos.iter().map(|(o, i)| (Peer::whole(*o), i)).collect();
        let auth = find_auth(&infos, acting[0]).unwrap();
        let c = choose(&infos, auth, up, acting, up[0], 3);
        (Peer::places(&c.want, 3), Peer::places(&c.backfill, 3))
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
    fn old_members_serve_until_new_ones_are_filled() {
        let all = [(1, info(7, 80, 10)), (2, info(7, 80, 10)), (3, info(7, 80, 10))];
        let c = pick(&all, &[1, 5, 6], &[1, 5, 6]);
        assert_eq!(c, (vec![1, 2, 3], vec![5, 6]));
        // One whose log has been overtaken is filled anew.
        let late = [(1, info(7, 80, 10)), (2, info(7, 5, 1))];
        assert_eq!(pick(&late, &[1, 2], &[1, 2]).1, vec![2]);
    }
}
