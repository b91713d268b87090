//! The owner of a host or a port that several applications want.

use super::*;
use crate::queue::QueueLimits;
use runtime::driver::Clock;

/// A table, and all applications that it was made of.
#[derive(Default)]
struct World {
    table: Table,
    all: BTreeMap<ApplicationName, Arc<RoutedApplication>>,
    /// The rights of applications that are put next.
    rights: Rights,
}

impl World {
    fn put(&mut self, name: &str, domains: &[&str], port: Option<u16>) -> &mut World {
        self.put_all(name, domains, port, &[])
    }

    fn put_all(
        &mut self,
        name: &str,
        domains: &[&str],
        port: Option<u16>,
        services: &[PortId],
    ) -> &mut World {
        let name: ApplicationName = name.parse().unwrap();
        let mut hosts = vec![routes::default_host(&name)];
        hosts.extend(domains.iter().map(|domain| (*domain).to_owned()));
        let queue = Queue::new(Clock::start(), Arc::default(), QueueLimits::default());
        let queue = Arc::new(queue);
        let bare = |endpoints| {
            let balance = router_core::balance::default_strategy();
            RoutedApplication::bare(name.clone(), balance, &queue, endpoints)
        };
        let service = |id: &PortId| {
            let recipe = PortRecipe {
                id: *id,
                process: model::ProcessType::web(),
                env: "OTHER_PORT".into(),
                proxy_protocol: None,
                idle_ms: None,
            };
            let application = Arc::new(bare(Vec::new()));
            (*id, Arc::new(Service { recipe, application, counters: Arc::default() }))
        };
        let services = services.iter().map(service).collect();
        let rights = self.rights.clone();
        let new = RoutedApplication { hosts, port, services, rights, ..bare(Vec::new()) };
        let new = Arc::new(new);
        let old = self.all.insert(name, new.clone());
        self.table.replace(old.as_ref(), Some(&new), &self.all);
        self
    }

    fn remove(&mut self, name: &str) {
        let old = self.all.remove(&name.parse().unwrap());
        self.table.replace(old.as_ref(), None, &self.all);
    }

    fn owners(&self) -> (Option<&str>, Option<&str>) {
        let host = self.table.by_host(b"shop.example");
        let port = self.table.by_port(8000);
        (host.map(|one| one.name.as_str()), port.map(|one| one.name.as_str()))
    }
}

#[test]
fn a_port_number_belongs_to_one_application_whatever_its_protocol() {
    let mut world = World::default();
    let (tcp, udp) = (PortId::tcp(8000), PortId::udp(8000));
    world.put("ant", &[], Some(8000));
    world.put_all("zebra", &[], None, &[tcp, udp]);
    assert_eq!(world.owners().1, Some("ant"));
    assert!(world.table.service(tcp).is_none(), "ant speaks HTTP there");
    assert!(world.table.service(udp).is_some());
    world.put("ant", &[], Some(8001));
    assert_eq!(world.table.service(tcp).unwrap().recipe.id, tcp);
    // This is a rollback to a release without them.
    world.put("zebra", &[], None);
    assert!(world.table.service(tcp).is_none() && world.table.service(udp).is_none());
    assert_eq!(world.table.ports().len(), 1);
}

#[test]
fn what_one_application_gives_up_falls_to_the_other() {
    let mut world = World::default();
    world.put("zebra", &["shop.example"], Some(8000));
    assert_eq!(world.owners(), (Some("zebra"), Some("zebra")));
    world.put("ant", &["shop.example"], Some(8000));
    assert_eq!(world.owners(), (Some("ant"), Some("ant")), "the same on every node");
    // Another release of either changes nothing.
    world.put("zebra", &["shop.example"], Some(8000));
    world.put("ant", &["shop.example"], Some(8000));
    assert_eq!(world.owners(), (Some("ant"), Some("ant")));
    world.put("ant", &["shop.example"], Some(8001));
    assert_eq!(world.owners(), (Some("ant"), Some("zebra")));
    world.put("ant", &[], None);
    assert_eq!(world.owners(), (Some("zebra"), Some("zebra")));
    world.put("ant", &["shop.example"], Some(8000));
    world.remove("ant");
    assert_eq!(world.owners(), (Some("zebra"), Some("zebra")));
    world.remove("zebra");
    assert_eq!(world.owners(), (None, None));
}

#[test]
fn the_application_that_serves_or_was_first_has_a_name_in_any_order() {
    type Wish = (&'static str, bool, u64, bool);
    let check = |wishes: &[Wish], expected: Option<&str>| {
        for turn in 0..wishes.len() {
            let mut world = World::default();
            for at in 0..2 * wishes.len() {
                let (name, serves, since, wants) = wishes[(turn + at) % wishes.len()];
                let mut spec = model::ApplicationSpec::new(model::Timestamp(7));
                spec.set_domains(vec!["shop.example".into()], model::Timestamp(since));
                // It comes without a release, and what it wants may change with the next.
                let domains: &[&str] =
                    if wants || at < wishes.len() { &["shop.example"] } else { &[] };
                let port = (wants || at < wishes.len()).then_some(8000);
                world.rights = Rights::of(&spec, serves && at >= wishes.len());
                world.put(name, domains, port);
            }
            assert_eq!(world.owners().0, expected, "{wishes:?} from {turn}");
        }
    };
    check(&[("ant", true, 5, true), ("zebra", true, 4, true)], Some("zebra"));
    check(&[("ant", false, 1, true), ("zebra", true, 4, true)], Some("zebra"));
    check(
        &[("ant", true, 4, true), ("bee", false, 1, true), ("zebra", true, 4, true)],
        Some("ant"),
    );
    check(
        &[("ant", true, 1, false), ("bee", false, 3, true), ("zebra", false, 2, true)],
        Some("zebra"),
    );
    check(&[("ant", true, 1, false), ("zebra", true, 2, false)], None);
}

#[test]
fn a_name_alone_comes_before_its_family() {
    let mut world = World::default();
    world.put("family", &["*.example.org", "*.shop.example.org"], None);
    world.put("shop", &["shop.example.org"], None);
    let owner = |host: &str| world.table.by_host(host.as_bytes()).map(|one| one.name.to_string());
    assert_eq!(owner("Shop.Example.org:80").as_deref(), Some("shop"));
    assert_eq!(owner("other.example.org.").as_deref(), Some("family"));
    assert_eq!(owner("a.b.example.org").as_deref(), Some("family"));
    assert_eq!(owner("example.org"), None);
    assert_eq!(owner("x.localhost"), None);
}
