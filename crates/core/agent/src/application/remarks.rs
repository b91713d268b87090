//! Remarks on what is odd about the first answers of a release: made where all of its HTTP
//! processes have it, on this node and on others. Asked when a rollout ends.

use model::ReleaseId;

use super::Application;
use super::slot::SlotId;

impl Application {
    /// Returns the remark of the first place; `None` if some answer well, or the router itself
    /// answers `/`.
    pub(super) fn remark(&self, release: &ReleaseId) -> Option<String> {
        let record = self.releases.get(release)?;
        if record.recipe.statics.iter().any(|statics| statics.prefix == "/") {
            return None;
        }
        let own = self.slots.iter().flat_map(|(place, slot)| {
            let ready = slot.current_of(release).filter(|process| process.is_ready());
            ready.map(move |process| (place, process.record.remark.as_deref()))
        });
        let all = own.chain(self.elsewhere.ready(release));
        let all: Vec<(&SlotId, Option<&str>)> = all.filter(|(place, _)| place.0.is_web()).collect();
        if all.iter().any(|(_, remark)| remark.is_none()) {
            return None;
        }
        let ((process, slot), remark) = all.into_iter().min_by_key(|(place, _)| *place)?;
        Some(format!("{process}.{slot}: {}", remark?))
    }
}
