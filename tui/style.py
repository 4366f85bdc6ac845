"""The layout: one column of panels on a narrow screen, gauges beside tables on a wide one.

Colours are variables of the theme; those that begin with `ink-` are added by `tui/palette.py`.
"""

CSS = """
Screen { background: $background; color: $foreground; layers: base; }
#header { height: 2; background: $panel; }
#banner { height: 1; background: $error; color: $background; text-style: bold; }
#body { height: 1fr; }

.chart, #blocks, #waiting, #loading, #instances, #queues, #deadlines, #sequences, #tree, #facts,
#story, #life, #map, #moves, #reserved {
    border: round $ink-line;
    border-title-color: $ink-muted;
    border-subtitle-color: $ink-muted;
    border-title-style: none;
    background: $background;
    padding: 0 1;
    text-wrap: nowrap;
    text-overflow: ellipsis;
}
#header, #banner { text-wrap: nowrap; text-overflow: ellipsis; }
KeyedTable, OwnerMap { scrollbar-size-vertical: 1; overflow-x: hidden; }
KeyedTable:focus, OwnerMap:focus {
    border: round $ink-focus;
    border-title-color: $foreground;
}
#body.-stale { opacity: 55%; }

#instances, #queues, #deadlines { height: auto; max-height: 40%; }
#sequences, #loading { height: 1fr; min-height: 4; }
#tree, #map { height: 1fr; }
#words, #moving { height: 1; }
#reserved { height: 6; }
#reserved.-loans { height: 50%; }
#cards { height: auto; }
#moves { height: 1fr; min-height: 3; }
#filter { display: none; height: 1; border: none; padding: 0 1; background: $panel; }
#filter.-open { display: block; }

SequenceScreen #body, InstanceScreen #body { layout: horizontal; }
#left, InstanceScreen #facts { width: 44; height: 100%; }
#left #facts { height: 1fr; text-wrap: wrap; }
#left .chart { height: 7; }
#side { width: 1fr; height: 100%; }
#life { height: 4; }
#story { height: 1fr; }
#grid { layout: grid; grid-size: 2 2; height: 2fr; min-height: 8; }
InstanceScreen #blocks { height: 1fr; max-height: 100%; }

OverviewScreen.-narrow #body { layout: vertical; }
.-narrow #gauges { height: auto; }
.-narrow #charts { layout: horizontal; height: 4; }
.-narrow #charts .chart { width: 1fr; height: 100%; }
OverviewScreen.-narrow #blocks { height: auto; min-height: 3; max-height: 6; }
.-narrow #waiting { display: none; }
.-narrow #tables { height: 1fr; }
OverviewScreen.-narrow.-short #blocks { height: 1; min-height: 1; border: none; padding: 0 2; }
.-narrow.-short #instances { max-height: 6; }
.-narrow.-short #body.-ranks #instances { max-height: 9; }
.-narrow.-short #queues { max-height: 3; border: none; padding: 0 2; }
.-narrow.-short #deadlines { max-height: 4; border: none; padding: 0 2; }
.-narrow.-short #charts { display: none; }
OverviewScreen.-narrow.-short #header { height: 3; }
OverviewScreen.-narrow.-short #body.-deadlines #blocks { display: none; }
.-narrow.-tall #charts { height: 7; }
OverviewScreen.-narrow.-tall #blocks { height: 10; max-height: 10; }
.-narrow.-tall #waiting { display: block; height: 6; }
.-narrow #left, InstanceScreen.-narrow #facts { width: 32; }

OverviewScreen.-wide #body { layout: horizontal; }
.-wide #gauges { width: 33%; height: 100%; }
.-wide #tables { width: 1fr; height: 100%; }
.-wide #charts { layout: vertical; height: 3fr; min-height: 9; }
.-wide #charts .chart { height: 1fr; }
OverviewScreen.-wide #blocks { height: 2fr; }
.-wide #waiting { height: 1fr; min-height: 4; }
.-wide.-short #waiting { display: none; }

HelpScreen, PolicyScreen, ChoiceScreen, ConfirmScreen {
    align: center middle; background: $background 60%;
}
#help, #policies, #choices, #confirm {
    width: 74; height: auto; max-height: 100%; padding: 0 2; background: $panel;
    border: round $primary; border-title-color: $primary; border-subtitle-color: $ink-muted;
}
#help { width: 79; }
#policies { width: 34; }
#choices { width: 46; }
#confirm { width: 56; padding: 1 2; }
"""
