//! When an open exchange with another OSD is repeated; what is open, and why nothing that is lost is
//! waited for, is in `repeat`.

use spirula_types::{OsdId, Peer};

/// How many times `retry_ms` the longest interval between two repeats is.
const SLOWEST: u64 = 8;

/// When an open exchange is repeated next. Looked at by ticks only: costs nothing while answers
/// come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Repeat {
    /// What is open; another one begins with the first interval.
    key: u64,
    next_ms: u64,
    /// 0: nothing was open.
    wait_ms: u64,
}

/// Which open exchanges to repeat.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Again {
    /// All with this OSD: the link to it was renewed. Else those whose time has come.
    link: Option<OsdId>,
    now_ms: u64,
    base_ms: u64,
}

impl Again {
    /// What is open with an OSD whose link was renewed (`link`), or what has waited for long. The
    /// first interval is `base_ms`.
    pub fn new(link: Option<OsdId>, now_ms: u64, base_ms: u64) -> Self {
        Self { link, now_ms, base_ms: base_ms.max(1) }
    }

    /// Of those that owe an answer to `key`, to whom the question is repeated.
    pub fn whom(
        &self,
        r: &mut Repeat,
        key: u64,
        open: impl IntoIterator<Item = Peer>,
    ) -> Vec<Peer> {
        let mut open: Vec<Peer> = open.into_iter().collect();
        if let Some(link) = self.link {
            open.retain(|p| p.osd == link);
            return open;
        }
        if open.is_empty() {
            *r = Repeat::default();
        } else if r.wait_ms == 0 || r.key != key {
            *r = Repeat { key, next_ms: self.now_ms + self.base_ms, wait_ms: self.base_ms };
            open.clear();
        } else if self.now_ms < r.next_ms {
            open.clear();
        } else {
            r.wait_ms = (2 * r.wait_ms).min(SLOWEST * self.base_ms);
            r.next_ms = self.now_ms + r.wait_ms;
        }
        open
    }
}

impl Repeat {
    /// Was it repeated twice by now, with no answer?
    pub fn is_late(&self, base_ms: u64) -> bool {
        self.wait_ms >= 4 * base_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_is_repeated_at_growing_intervals_and_at_once_on_a_renewed_link() {
        let mut r = Repeat::default();
        let (a, b) = (Peer::whole(1), Peer::whole(2));
        let at = |now_ms| Again { link: None, now_ms, base_ms: 10 };
        let mut said = Vec::new();
        for now in 0..1000 {
            if !at(now).whom(&mut r, 7, [a, b]).is_empty() {
                said.push(now);
            }
        }
        assert_eq!(said, [10, 30, 70, 150, 230, 310, 390, 470, 550, 630, 710, 790, 870, 950]);
        let renewed = Again { link: Some(2), ..at(1000) };
        assert_eq!(renewed.whom(&mut r, 7, [a, b]), [b]);
        // Another question begins anew; none forgets.
        assert!(at(1100).whom(&mut r, 8, [a]).is_empty());
        assert_eq!(at(1110).whom(&mut r, 8, [a]), [a]);
        assert!(at(1111).whom(&mut r, 8, []).is_empty());
        assert!(at(2000).whom(&mut r, 8, [a]).is_empty());
    }
}
