//! What a command changed in the specification of an application, part by part, and how such a part
//! is put back. Pure.

use model::change::{ChangePart, DomainChoice, PortChoice};
use model::{ApplicationSpec, Timestamp};

/// Returns what differs, as far as it can be put back.
pub fn of_spec(before: &ApplicationSpec, after: &ApplicationSpec) -> Vec<ChangePart> {
    let mut parts = Vec::new();
    let names = before
        .processes
        .keys()
        .chain(after.processes.keys().filter(|process| !before.processes.contains_key(*process)));
    for process in names {
        let count = |spec: &ApplicationSpec| spec.processes.get(process).map(|one| one.count);
        let (process, before, after) = (process.clone(), count(before), count(after));
        if before != after {
            parts.push(ChangePart::Scale { process, before, after });
        }
    }
    let (old, new) = (domains(before), domains(after));
    if old != new {
        parts.push(ChangePart::Domains { before: old, after: new });
    }
    let (old, new) = (port(before), port(after));
    if old != new {
        parts.push(ChangePart::Port { before: old, after: new });
    }
    if before.maintenance != after.maintenance {
        let (before, after) = (before.maintenance, after.maintenance);
        parts.push(ChangePart::Maintenance { before, after });
    }
    let (old, new) = (password(before), password(after));
    if old != new {
        parts.push(ChangePart::Password { before: old, after: new });
    }
    parts
}

pub fn domains(spec: &ApplicationSpec) -> DomainChoice {
    DomainChoice { names: spec.domains.clone(), chosen: spec.domains_chosen }
}

/// Returns when the password was set that clients are asked for.
pub fn password(spec: &ApplicationSpec) -> Option<Timestamp> {
    spec.password.as_ref().map(|password| password.since)
}

/// Goes back to the password from before, of which nothing but what is in the specification is
/// known; returns whether it is.
pub fn put_password_back(spec: &mut ApplicationSpec, before: Option<Timestamp>) -> bool {
    let known = spec.password_before.take().filter(|known| Some(known.since) == before);
    let is_known = known.is_some() == before.is_some();
    spec.password_before = std::mem::replace(&mut spec.password, known);
    is_known
}

pub fn port(spec: &ApplicationSpec) -> PortChoice {
    PortChoice { port: spec.port, chosen: spec.port_chosen }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::application::Password;
    use model::{ProcessSpec, ProcessType};

    #[test]
    fn a_password_comes_back_and_forth_and_one_of_long_ago_does_not() {
        let password = |since| {
            let (salt, hash) = ("salt".into(), format!("hash {since}"));
            Some(Password { since: Timestamp(since), salt, hash, rounds: 1 })
        };
        let mut spec = ApplicationSpec::new(Timestamp(1));
        (spec.password_before, spec.password) = (password(2), password(3));
        let as_it_was = spec.clone();
        assert!(put_password_back(&mut spec, Some(Timestamp(2))));
        assert_eq!((&spec.password, &spec.password_before), (&password(2), &password(3)));
        assert!(put_password_back(&mut spec, Some(Timestamp(3))));
        assert_eq!(spec, as_it_was);
        assert!(!put_password_back(&mut spec.clone(), Some(Timestamp(1))));
        // Where none was asked for before, none is.
        assert!(put_password_back(&mut spec, None));
        assert_eq!((&spec.password, &spec.password_before), (&None, &password(3)));
        assert!(put_password_back(&mut spec, Some(Timestamp(3))));
        assert_eq!(spec.password, password(3));
    }

    #[test]
    fn what_differs_is_named_and_nothing_else() {
        let before = ApplicationSpec::new(Timestamp(1));
        assert_eq!(of_spec(&before, &before), []);
        let mut after = before.clone();
        let web = ProcessSpec { count: 3, ..ProcessSpec::default() };
        after.processes.insert(ProcessType::web(), web);
        after.restart += 1;
        let scale = ChangePart::Scale { process: ProcessType::web(), before: None, after: Some(3) };
        assert_eq!(of_spec(&before, &after), std::slice::from_ref(&scale));
        assert_eq!(of_spec(&after, &before), [scale.inverse(None).unwrap()]);
        after.set_domains(vec!["a.test".into()], Timestamp(2));
        after.domains_chosen = true;
        after.port = Some(8080);
        let parts = of_spec(&before, &after);
        let [
            _,
            ChangePart::Domains { before: none, after: one },
            ChangePart::Port { after: port, .. },
        ] = &parts[..]
        else {
            panic!("{parts:?}")
        };
        assert_eq!((none.names.len(), none.chosen), (0, false));
        assert_eq!((&one.names[..], one.chosen), (&["a.test".to_string()][..], true));
        assert_eq!(*port, PortChoice { port: Some(8080), chosen: false });
    }
}
