//! Limits of a team: what its applications may take together. A change is refused if it takes more
//! of something than before and more than is allowed; what is above its limit already, as one that
//! was lowered, may shrink, stay and be released anew.

use std::fmt;

use model::people::TeamLimits;

/// The memory of an instance of a team whose memory is limited, where its application says nothing:
/// that of the smallest instance that platforms rent out.
pub const INSTANCE_MEMORY_DEFAULT: u64 = 512 * 1024 * 1024;

/// What applications take: how many they are, the instances that they ask for, the memory that
/// those may grow to, and the disk of all nodes together that their files take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TeamUse {
    pub applications: u64,
    pub instances: u64,
    pub memory_bytes: u64,
    pub disk_bytes: u64,
}

impl TeamUse {
    /// Returns what an application takes with so many instances of so much memory each, but for its
    /// files.
    pub fn of_application(instances: u64, memory_bytes: Option<u64>) -> TeamUse {
        let each = memory_bytes.unwrap_or(INSTANCE_MEMORY_DEFAULT);
        let memory_bytes = instances.saturating_mul(each);
        TeamUse { applications: 1, instances, memory_bytes, disk_bytes: 0 }
    }

    pub fn and(self, other: TeamUse) -> TeamUse {
        TeamUse {
            applications: self.applications.saturating_add(other.applications),
            instances: self.instances.saturating_add(other.instances),
            memory_bytes: self.memory_bytes.saturating_add(other.memory_bytes),
            disk_bytes: self.disk_bytes.saturating_add(other.disk_bytes),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    Applications,
    Instances,
    Memory,
    Disk,
}

impl Resource {
    const ALL: [Resource; 4] =
        [Resource::Applications, Resource::Instances, Resource::Memory, Resource::Disk];

    fn of(self, used: TeamUse) -> u64 {
        match self {
            Resource::Applications => used.applications,
            Resource::Instances => used.instances,
            Resource::Memory => used.memory_bytes,
            Resource::Disk => used.disk_bytes,
        }
    }

    fn allowed(self, limits: &TeamLimits) -> Option<u64> {
        match self {
            Resource::Applications => limits.applications,
            Resource::Instances => limits.instances,
            Resource::Memory => limits.memory_bytes,
            Resource::Disk => limits.disk_bytes,
        }
    }

    fn amount(self, amount: u64) -> String {
        match self {
            Resource::Applications | Resource::Instances => amount.to_string(),
            Resource::Memory | Resource::Disk => format!("{} MB", amount.div_ceil(1024 * 1024)),
        }
    }

    fn words(self, amount: u64) -> &'static str {
        match (self, amount) {
            (Resource::Applications, 1) => "application",
            (Resource::Applications, _) => "applications",
            (Resource::Instances, 1) => "instance",
            (Resource::Instances, _) => "instances",
            (Resource::Memory, _) => "of memory",
            (Resource::Disk, _) => "of disk",
        }
    }
}

/// The limit that a change would exceed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitExceeded {
    pub resource: Resource,
    /// The amount that is taken without the change.
    pub used: u64,
    pub wanted: u64,
    pub allowed: u64,
}

impl fmt::Display for LimitExceeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LimitExceeded { resource, used, wanted, allowed } = *self;
        let [all, used, allowed] = [wanted, used, allowed].map(|amount| resource.amount(amount));
        let what = resource.words(wanted);
        write!(f, "{all} {what} in all (in use: {used}, allowed: {allowed})")
    }
}

/// Checks a change by what all applications of the team take before and after it.
pub fn check_limits(
    limits: &TeamLimits,
    before: TeamUse,
    after: TeamUse,
) -> Result<(), LimitExceeded> {
    for resource in Resource::ALL {
        let Some(allowed) = resource.allowed(limits) else { continue };
        let (used, wanted) = (resource.of(before), resource.of(after));
        if wanted > used && wanted > allowed {
            return Err(LimitExceeded { resource, used, wanted, allowed });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MB: u64 = 1024 * 1024;

    #[test]
    fn a_limit_is_reached_and_not_exceeded() {
        let limits = TeamLimits { instances: Some(3), ..TeamLimits::default() };
        let used = |instances| TeamUse::of_application(instances, Some(MB));
        assert_eq!(check_limits(&limits, used(1), used(3)), Ok(()));
        let exceeded = check_limits(&limits, used(1), used(4)).unwrap_err();
        assert_eq!(exceeded.to_string(), "4 instances in all (in use: 1, allowed: 3)");
    }

    #[test]
    fn memory_is_that_which_instances_may_grow_to() {
        let limits = TeamLimits { memory_bytes: Some(1024 * MB), ..TeamLimits::default() };
        let (none, default) = (TeamUse::default(), TeamUse::of_application(3, None));
        let exceeded = check_limits(&limits, none, default).unwrap_err();
        assert_eq!((exceeded.wanted, exceeded.allowed), (1536 * MB, 1024 * MB));
        assert_eq!(check_limits(&limits, none, TeamUse::of_application(3, Some(300 * MB))), Ok(()));
    }

    fn any_use() -> impl Strategy<Value = TeamUse> {
        (0_u64..5, 0_u64..5, 0_u64..5, 0_u64..5).prop_map(
            |(applications, instances, memory_bytes, disk_bytes)| TeamUse {
                applications,
                instances,
                memory_bytes,
                disk_bytes,
            },
        )
    }

    proptest! {
        /// Asserts that nothing grows beyond its limit, and that what does not grow is allowed.
        #[test]
        fn only_growth_beyond_a_limit_is_refused(
            before in any_use(),
            after in any_use(),
            limits in (any::<[bool; 4]>(), any_use()),
        ) {
            let (set, most) = limits;
            let limits = TeamLimits {
                applications: set[0].then_some(most.applications),
                instances: set[1].then_some(most.instances),
                memory_bytes: set[2].then_some(most.memory_bytes),
                disk_bytes: set[3].then_some(most.disk_bytes),
            };
            let grows = Resource::ALL.into_iter().any(|resource| {
                let most = resource.allowed(&limits).unwrap_or(u64::MAX);
                resource.of(after) > resource.of(before) && resource.of(after) > most
            });
            prop_assert_eq!(check_limits(&limits, before, after).is_err(), grows);
        }
    }
}
