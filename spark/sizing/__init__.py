"""How many workers and partitions will be needed, what they cost, and what if: from the history of loads.

    loads --history--> hours of jobs --forecast--> busiest hours to come -+-scenarios--> workers, levels
                                                                          +-advice-----> partitions, cost

Modules
    history    frames: loads of five minutes -> hours of every job, from the dashboard's store, an archive of
               heartbeats, or Parquet files of these columns
    forecast   one series: hour-of-week profile x trend, with its error on the last week; pure
    scenarios  a fleet under a question (as it is, a region more, a topic doubled, a zone lost), placed by
               `app.placement.model.bin_packing`, the controller's own code; pure
    advice     partitions and cost of workloads, by `app.sizing.recommendation`; pure
    hours      what fleets need hour by hour, forecast or measured; series of fleets and workloads
    publish    forecasts as records of the regions' topics (`app.sizing.forecasts`), and back
    compare    what was published with what happened

Method, stated in every report
1. A job's hour is the mean of its five-minute means, and its highest one.
2. Forecast: the median of each hour of the week over the weeks, in shares of the week's mean, times a
   straight trend through the weeks' means (Theil-Sen, so that one odd week does not turn it), never below
   nothing and never beyond `forecast.MOST_GROWTH` of the last week. With less than two weeks there is no
   trend, with less than one the profile is of the hour of the day, with less than two days there is none,
   and the highest hour counts. A job that was not seen for a week is gone: it counts in the past only.
3. What is placed is the forecast at its busiest hour, times what real hours were above their forecast in
   `percentile` of cases.
4. What is asked of the busiest hours to come is asked of each past week's busiest hours, as they were, too;
   a week without the topic or the region that is asked for has no answer.
5. The error is measured: the last week is forecast from those before it, and compared with what came.
"""
