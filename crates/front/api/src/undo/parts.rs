//! What a command changed in the specification of an application, part by part, and how such a part
//! is put back. Pure.

use model::ApplicationSpec;
use model::change::{ChangePart, DomainChoice, PortChoice};

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
    parts
}

pub fn domains(spec: &ApplicationSpec) -> DomainChoice {
    DomainChoice { names: spec.domains.clone(), chosen: spec.domains_chosen }
}

pub fn port(spec: &ApplicationSpec) -> PortChoice {
    PortChoice { port: spec.port, chosen: spec.port_chosen }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::{ProcessSpec, ProcessType, Timestamp};

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
