"""The sections of a run's report, in their order."""

from harness.report import check_sections, limit_section, machine_sections, number_sections, setup_section

SECTIONS = (
    setup_section.measured_with,
    number_sections.bounds,
    limit_section.card_limits,
    number_sections.loads,
    number_sections.numbers,
    check_sections.workload,
    check_sections.accuracy,
    check_sections.compliance,
    machine_sections.profile,
    machine_sections.machine,
    machine_sections.files,
)
